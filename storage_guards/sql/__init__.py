"""The admission rule as SQL. No driver is known here."""
