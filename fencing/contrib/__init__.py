"""The library at home in frameworks, each in a folder or file of its own. Nothing else imports them."""
