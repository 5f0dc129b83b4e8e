"""Contract suites, to be run against a new backend or a new guard."""
