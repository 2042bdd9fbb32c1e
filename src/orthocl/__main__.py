"""`python -m orthocl`: the command line."""

from orthocl.cli.app import main

main()
