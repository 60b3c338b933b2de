"""What a person or a program sees: pure functions from data to text. Nothing here measures."""
