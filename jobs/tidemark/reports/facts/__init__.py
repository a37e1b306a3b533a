"""The facts about the present and the past that pages show."""
