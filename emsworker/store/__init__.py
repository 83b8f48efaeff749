"""The only place with SQL: one module and one ``.sql`` file per subject, over one kind of session."""
