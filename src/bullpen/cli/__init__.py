"""The console script `bullpen`: `main` picks the command, each command has a file of its own."""
