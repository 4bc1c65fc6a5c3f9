"""What only the tests of Bullpen itself need: the schedule explorer and the lock-order checker."""
