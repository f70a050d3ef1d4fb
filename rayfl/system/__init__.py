"""What concerns the process, its files, its terminal and its memory, and knows nothing of learning."""
