-- KEYS: a tag. ARGV: ids.
return show(KEYS[1], ARGV)
