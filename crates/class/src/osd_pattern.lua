-- Lua's patterns in an OSD, by the rules of its own matcher, each step of which is paid for: that one may take exponential
-- time in C. The counterpart of pattern.rs.
--
-- `charge` pays for work, `reserve` for a text that is made; the others check arguments.
local function patterns(charge, reserve, text_of, whole, natural)
  local byte, char, find, sub = string.byte, string.char, string.find, string.sub
  local spread, joined = table.unpack, table.concat
  local P = {}

  local subject, pattern, level, depth = "", "", 0, 0
  -- Captures: where they start, and their lengths; -1 is open, -2 a position.
  local starts, lengths = {}, {}
  local run

  local function is_in_class(c, letter)
    local of = char(letter)
    if find("acdglpsuwxACDGLPSUWX", of, 1, true) then return find(char(c), "%" .. of) ~= nil end
    return letter == c
  end

  local function class_end(p)
    local c = byte(pattern, p)
    if c == 37 then
      if p >= #pattern then error("malformed pattern (ends with '%')", 0) end
      return p + 2
    end
    if c ~= 91 then return p + 1 end
    local at = p + 1
    if byte(pattern, at) == 94 then at = at + 1 end
    while true do
      charge(1)
      local inner = byte(pattern, at)
      at = at + 1
      if not inner or inner == 37 and at > #pattern then error("malformed pattern (missing ']')", 0) end
      if inner == 37 then at = at + 1 end
      if byte(pattern, at) == 93 then return at + 1 end
    end
  end

  local function is_in_set(c, p, last)
    local at, found = p + 1, true
    if byte(pattern, at) == 94 then at, found = at + 1, false end
    while at < last do
      charge(1)
      local first = byte(pattern, at)
      if first == 37 then
        if is_in_class(c, byte(pattern, at + 1)) then return found end
        at = at + 2
      elseif byte(pattern, at + 1) == 45 and at + 2 < last then
        if first <= c and c <= byte(pattern, at + 2) then return found end
        at = at + 3
      else
        if first == c then return found end
        at = at + 1
      end
    end
    return not found
  end

  local function is_single(s, p, behind)
    charge(1)
    local c, first = byte(subject, s), byte(pattern, p)
    if not c then return false end
    if first == 46 then return true end
    if first == 37 then return is_in_class(c, byte(pattern, p + 1)) end
    if first == 91 then return is_in_set(c, p, behind - 1) end
    return first == c
  end

  local function greedy(s, p, behind)
    local count = 0
    while is_single(s + count, p, behind) do count = count + 1 end
    while count >= 0 do
      local found = run(s + count, behind + 1)
      if found then return found end
      count = count - 1
    end
  end

  local function lazy(s, p, behind)
    while true do
      local found = run(s, behind + 1)
      if found then return found end
      if not is_single(s, p, behind) then return nil end
      s = s + 1
    end
  end

  local function open(s, p, length)
    if level == 32 then error("too many captures", 0) end
    level = level + 1
    starts[level], lengths[level] = s, length
    local found = run(s, p)
    if not found then level = level - 1 end
    return found
  end

  local function close(s, p)
    for i = level, 1, -1 do
      if lengths[i] == -1 then
        lengths[i] = s - starts[i]
        local found = run(s, p)
        if not found then lengths[i] = -1 end
        return found
      end
    end
    error("invalid pattern capture", 0)
  end

  local function balanced(s, p)
    local opening, closing = byte(pattern, p), byte(pattern, p + 1)
    if not closing then error("malformed pattern (missing arguments to '%b')", 0) end
    if byte(subject, s) ~= opening then return nil end
    local nested = 1
    for at = s + 1, #subject do
      charge(1)
      local c = byte(subject, at)
      if c == closing then
        nested = nested - 1
        if nested == 0 then return at + 1 end
      elseif c == opening then
        nested = nested + 1
      end
    end
  end

  local function again(s, digit)
    local i = digit - 48
    if i < 1 or i > level or lengths[i] < 0 then error("invalid capture index in pattern", 0) end
    local text = sub(subject, starts[i], starts[i] + lengths[i] - 1)
    charge(#text >> 4)
    if sub(subject, s, s + #text - 1) == text then return s + #text end
  end

  local function matched(s, p)
    while true do
      charge(1)
      local c = byte(pattern, p)
      if not c then return s end
      local is_item = true
      if c == 40 then
        if byte(pattern, p + 1) == 41 then return open(s, p + 2, -2) end
        return open(s, p + 1, -1)
      elseif c == 41 then
        return close(s, p + 1)
      elseif c == 36 and p == #pattern then
        return s == #subject + 1 and s or nil
      elseif c == 37 then
        local following = byte(pattern, p + 1)
        if following == 98 then
          s = balanced(s, p + 2)
          if not s then return nil end
          p, is_item = p + 4, false
        elseif following == 102 then
          p = p + 2
          if byte(pattern, p) ~= 91 then error("missing '[' after '%f' in pattern", 0) end
          local behind = class_end(p)
          local before, here = s > 1 and byte(subject, s - 1) or 0, byte(subject, s) or 0
          if is_in_set(before, p, behind - 1) or not is_in_set(here, p, behind - 1) then return nil end
          p, is_item = behind, false
        elseif following and following >= 48 and following <= 57 then
          s = again(s, following)
          if not s then return nil end
          p, is_item = p + 2, false
        end
      end
      if is_item then
        local behind = class_end(p)
        local repeats = byte(pattern, behind)
        if repeats == 63 then
          if is_single(s, p, behind) then
            local found = run(s + 1, behind + 1)
            if found then return found end
          end
          p = behind + 1
        elseif repeats == 43 then
          if not is_single(s, p, behind) then return nil end
          return greedy(s + 1, p, behind)
        elseif repeats == 42 then
          return greedy(s, p, behind)
        elseif repeats == 45 then
          return lazy(s, p, behind)
        else
          if not is_single(s, p, behind) then return nil end
          s, p = s + 1, behind
        end
      end
    end
  end

  run = function(s, p)
    if depth == 200 then error("pattern too complex", 0) end
    depth = depth + 1
    local found = matched(s, p)
    depth = depth - 1
    return found
  end

  -- The first match from an offset on, that does not end at one: its first byte, and the one behind it.
  local function search(text, of, from, anchors, last)
    local is_anchored = anchors and byte(of) == 94
    subject, pattern = text, is_anchored and sub(of, 2) or of
    for start = from + 1, #text + 1 do
      level, depth = 0, 0
      charge(1)
      local behind = run(start, 1)
      if behind and behind - 1 ~= last then return start, behind end
      if is_anchored then return nil end
    end
  end

  local function captured(i)
    local length = lengths[i]
    if length == -1 then error("unfinished capture", 0) end
    if length == -2 then return starts[i] end
    reserve(length)
    return sub(subject, starts[i], starts[i] + length - 1)
  end

  -- The captures of the last match; where it has none, the whole of it if its place is given.
  local function captures(start, behind)
    if level == 0 then
      if not start then return end
      reserve(behind - start)
      return sub(subject, start, behind - 1)
    end
    local values = {}
    for i = 1, level do values[i] = captured(i) end
    return spread(values, 1, level)
  end

  local function place(init, length)
    init = init == nil and 1 or whole(init)
    if init < 0 then init = length + init + 1 end
    if init < 1 then init = 1 end
    return init <= length + 1 and init - 1 or nil
  end

  function P.search(text, of, from, anchors, last)
    text, of, from = text_of(text), text_of(of), natural(from)
    local start, behind = search(text, of, from, anchors, last)
    if not start then return end
    return start - 1, behind - 1, captures(start, behind)
  end

  function P.find(text, of, init, plain)
    text, of = text_of(text), text_of(of)
    local from = place(init, #text)
    if not from then return nil end
    if plain or not find(of, "[%^$*+?.(%[%%%-]") then
      charge(1 + ((#text - from) * (#of + 8) >> 8))
      return find(text, of, from + 1, true)
    end
    local start, behind = search(text, of, from, true)
    if not start then return nil end
    return start, behind - 1, captures()
  end

  function P.match(text, of, init)
    text, of = text_of(text), text_of(of)
    local from = place(init, #text)
    if not from then return nil end
    local start, behind = search(text, of, from, true)
    if not start then return nil end
    return captures(start, behind)
  end

  function P.gsub_text(text, of, replacement, max)
    text, of, replacement = text_of(text), text_of(of), text_of(replacement)
    max = max == nil and math.maxinteger or whole(max)
    local parts, count, at, last = {}, 0, 0, nil
    local function put(part)
      reserve(#part)
      parts[#parts + 1] = part
    end
    while count < max and at <= #text do
      local start, behind = search(text, of, at, true, last)
      if not start then break end
      count = count + 1
      put(sub(text, at + 1, start - 1))
      local from = 1
      while true do
        local percent = find(replacement, "%", from, true)
        if not percent then break end
        charge(1)
        put(sub(replacement, from, percent - 1))
        local digit = (byte(replacement, percent + 1) or 0) - 48
        if digit == -11 then
          put("%")
        elseif digit == 0 or digit == 1 and level == 0 then
          put(sub(text, start, behind - 1))
        elseif digit < 0 or digit > 9 then
          error("invalid use of '%' in replacement string", 0)
        elseif digit > level then
          error("invalid capture index %" .. digit .. " in replacement string", 0)
        else
          put(captured(digit) .. "")
        end
        from = percent + 2
      end
      put(sub(replacement, from))
      at, last = behind - 1, behind - 1
      if byte(of) == 94 then break end
    end
    put(sub(text, at + 1))
    local made = joined(parts)
    reserve(#made)
    return made, count
  end

  return P
end
