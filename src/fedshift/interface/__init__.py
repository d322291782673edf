"""The Python interface: studies, trained runs and results, opened in a script or a notebook.

It reads what the workflow wrote, by the code that the workflow itself uses, and writes nothing.
The package `fedshift` exports its names. Training, scoring and pages belong to the layers below.
"""
