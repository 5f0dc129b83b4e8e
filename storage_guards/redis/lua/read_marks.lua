-- Returns the marks.
-- KEYS: the marks
-- Returns: {the server's history, mark 1, mark 2 …}

local found = {history()}
for i, key in ipairs(KEYS) do found[i + 1] = mark_at(key) end
return found
