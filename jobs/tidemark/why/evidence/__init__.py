"""What the rules of `why` reason with: the facts of an instant, findings, and the commands of remedies."""
