"""From measurements to variability classes: records -> slowdowns -> classes."""
