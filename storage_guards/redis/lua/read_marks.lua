-- Returns the marks.
-- KEYS: the marks
-- Returns: {mark 1, mark 2 …}

local marks = {}
for i, key in ipairs(KEYS) do marks[i] = mark_at(key) end
return marks
