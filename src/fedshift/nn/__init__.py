"""Networks as the engine sees them: the flat state, batch-norm layers, batch-norm policies, and features.

Layers are found by type, never by name.
Architectures belong to `models`, methods to `algorithms` and `inferences`.
"""
