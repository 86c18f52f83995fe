"""A model for data without labels, once or for as long as better ones come."""
