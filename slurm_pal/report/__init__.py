"""Tables for people; read only."""
