"""Networks as the engine sees them: the flat state, batch-norm layers and policies, features.

Layers are found by type, never by name.
Architectures belong to `models`, methods to `algorithms` and `inferences`.
"""
