"""What brings the service to where it runs, and what watches it there."""
