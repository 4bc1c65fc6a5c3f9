-- KEYS: a tag. ARGV: ids.
-- WITH clock basics shown
return show(KEYS[1], ARGV)
