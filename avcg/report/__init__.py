"""Pictures of answers, and pages about them."""
