"""Which sensitivity class a job belongs to."""
