-- Sequencers: a rank whose sequencers have load sends half of that to the next rank, if that one's have nearly none, at once.
-- Those of a subtree count as well. This suits bursts; each sequencer, and each subtree, moves as a whole.
function load(rank)
  return server[rank]["load.sequencer"] + server[rank]["load.subtree"]
end

function when()
  return server[whoami]["load"] > 0.01 and server[whoami + 1]["load"] < 0.01
end

function where()
  targets[whoami + 1] = server[whoami]["load"] / 2
end
