-- Hash: where a resource belongs depends on its name alone. Load does not matter; with many resources of about the same load
-- it comes out even, and nothing has to be known of the others.
function home(resource)
  local bytes, hash = { string.byte(resource.name, 1, -1) }, 5381
  for at = 1, #bytes do hash = hash * 33 + bytes[at] & 0xffffffff end
  -- The lower bits of neighbouring names are much alike.
  hash = (hash ~ hash >> 15) * 2246822519 & 0xffffffff
  return (hash ~ hash >> 13) % (#server + 1)
end
