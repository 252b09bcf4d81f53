"""The Python interface to the command: verbs as functions, their JSON as dataclasses."""
