"""The ``osd`` command. Each file is a group of commands; out.py prints, context.py opens what they need."""
