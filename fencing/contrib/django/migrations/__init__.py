"""Migrations of the app: the tables of the guards."""
