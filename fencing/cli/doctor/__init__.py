"""What is right and what is wrong with the services: ``fencing doctor``."""
