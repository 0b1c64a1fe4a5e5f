"""What describes a run and guards its folder, read and written without torch."""
