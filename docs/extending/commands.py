"""Greets a person."""


def add_options(parser):
    parser.add_argument("who")


def command(options):
    print(f"hello {options.who}")
    return 0
