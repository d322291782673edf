"""Reading, writing and downloading files: whole or not at all, checksummed, and named when they are unreadable.

Nothing here knows what a file means; what passes between the rules of the workflow is named in `paths`.
A change here shapes no result.
"""
