"""What a study or a run found, in the formats of other tools."""
