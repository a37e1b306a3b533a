"""Documents that answer a question about a topology: a module for each question.

The text of the command, the JSON of the route and the HTML of the page render it.
"""
