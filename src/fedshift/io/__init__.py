"""Reading, writing and downloading files: whole or not at all, with checksums, and named when they are unreadable.

Nothing here knows what a file means. `paths` names the files that pass between the rules of the workflow.
A change here changes no result, with one exception: `images`, which decides what pixels are read.
"""
