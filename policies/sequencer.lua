-- Sequencers: a rank whose sequencers have load sends half of that to the next rank, if that one's have nearly none, at once.
-- This suits bursts; each sequencer moves as a whole.
function load(rank)
  return server[rank]["load.sequencer"]
end

function when()
  return server[whoami]["load"] > 0.01 and server[whoami + 1]["load"] < 0.01
end

function where()
  targets[whoami + 1] = server[whoami]["load"] / 2
end
