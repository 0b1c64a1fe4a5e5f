"""The command line: arguments, composition, actions."""
