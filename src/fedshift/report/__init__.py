"""From predictions to scores, tables, figures and the page."""
