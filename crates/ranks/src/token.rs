//! Termination detection: Dijkstra's token (section IV-A).
//!
//! The rules as published. Ranks are in numerical order and start white. Rank 0, when idle, makes a white token and sends it to
//! rank 1. A rank that sends work to a lesser rank becomes black. A black rank that has the token blackens it, becomes
//! white and forwards it; a white rank forwards it as it is; both only when idle; the last rank forwards to rank 0. When a
//! white token comes back to rank 0, everything is done; a black one starts another round.
//!
//! # The meaning of idle
//!
//! The published rules are Dijkstra's, and his proof takes a message to arrive in the instant in which it is sent. With
//! non-blocking sends, where messages of *different* pairs of ranks overtake each other, they end too early if idle means no more
//! than "my queue is empty". Three ranks are enough:
//!
//! 1. Rank 2 asks rank 0 for work, and rank 0 gives it a directory. That message is slow.
//! 2. Rank 0 works off what it kept, becomes idle, and sends a white token to rank 1, which is idle and forwards it to rank 2.
//! 3. Rank 2 has an empty queue, so it forwards the white token to rank 0, which ends the walk. The directory arrives
//!    later.
//!
//! No rank became black, because the work went to a higher rank. Blackening every sender would not help: work that goes
//! *down* does blacken its sender, but when it is slower than a whole round of the token, that one round comes back
//! black, the next one comes back white, and the work is still in flight. First-in-first-out order per pair is enough
//! for two ranks, and never for three. The search in `simulate::exhaustive` finds these runs by itself.
//!
//! The minimal remedy: **a rank with a request of its own open is not idle.** Work is only ever sent to answer a
//! request, so a rank to which work is in flight has a request open, from before the work was sent until it arrived.
//! Such a rank holds the token back. That is as if the work had arrived at the moment it was sent, from which time its
//! receiver counted as busy; so Dijkstra's proof holds unchanged. It costs no message and no acknowledgement: every
//! request is answered at once, if only by a refusal, so a token is held back for one round trip at most, and a rank
//! forwards the token before it asks again.
//!
//! Rank 0 need not check its own colour when the token comes back, though Dijkstra's rules do so: it sends to no lower
//! rank, and any rank that gave it new work since the token left was black. It *is* required to be idle, which a white
//! token implies.

use super::message::Colour;

/// The rules that hold. Only [`Rule::SOUND`] is correct; the others exist to show that the checkers catch them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Sending work to a lower rank makes the sender black.
    pub blackens: bool,
    /// A black rank blackens the token.
    pub taints: bool,
    /// The token is forwarded only when idle.
    pub waits_for_idle: bool,
    /// A rank with a request open is not idle.
    pub waits_for_answer: bool,
    /// Rank 0 starts another round when the token comes back black.
    pub checks_colour: bool,
    /// A black rank becomes white when it forwards the token.
    pub whitens: bool,
}

impl Rule {
    /// The rules to use.
    pub const SOUND: Self = Self {
        blackens: true,
        taints: true,
        waits_for_idle: true,
        waits_for_answer: true,
        checks_colour: true,
        whitens: true,
    };

    /// The published rules with idle taken to mean "my queue is empty". Not sound when messages of different pairs overtake.
    pub const AS_PUBLISHED: Self = Self { waits_for_answer: false, ..Self::SOUND };
}

/// The action that a rank has to take about the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// No action.
    Nothing,
    /// Send the token to this rank.
    Send(u32, Colour),
    /// Rank 0 only: everything is done.
    Terminated,
}

/// One rank's state of termination detection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    rank: u32,
    ranks: u32,
    colour: Colour,
    held: Option<Colour>,
    /// Rank 0 only: the token is travelling.
    out: bool,
}

impl Token {
    /// Creates the state of `rank` among `ranks`.
    pub fn new(rank: u32, ranks: u32) -> Self {
        Self { rank, ranks, colour: Colour::White, held: None, out: false }
    }

    /// Records that work was sent to `to`.
    pub fn work_sent(&mut self, rule: Rule, to: u32) {
        if rule.blackens && to < self.rank {
            self.colour = Colour::Black;
        }
    }

    /// Receives the token.
    pub fn receive(&mut self, colour: Colour) {
        self.held = Some(colour);
    }

    /// Returns the colour of this rank.
    pub fn colour(&self) -> Colour {
        self.colour
    }

    /// Returns the action to take now, given whether this rank has anything queued or in work (`busy`) and whether it
    /// has a request open (`asking`). To be called after every change of either, and after every token.
    pub fn step(&mut self, rule: Rule, busy: bool, asking: bool) -> Step {
        let waits = asking && rule.waits_for_answer;
        let idle = !busy && !waits;
        if self.rank == 0 {
            return self.step_root(rule, idle);
        }
        let Some(token) = self.held else { return Step::Nothing };
        if rule.waits_for_idle && !idle {
            return Step::Nothing;
        }
        self.held = None;
        let token = if self.colour == Colour::Black && rule.taints { Colour::Black } else { token };
        if rule.whitens {
            self.colour = Colour::White;
        }
        Step::Send((self.rank + 1) % self.ranks, token)
    }

    fn step_root(&mut self, rule: Rule, idle: bool) -> Step {
        if !idle {
            return Step::Nothing;
        }
        if self.ranks == 1 {
            return Step::Terminated;
        }
        match self.held.take() {
            Some(colour) if colour == Colour::White || !rule.checks_colour => return Step::Terminated,
            Some(_) => {}
            None if self.out => return Step::Nothing,
            None => {}
        }
        self.out = true;
        self.colour = Colour::White;
        Step::Send(1, Colour::White)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule::SOUND;

    #[test]
    fn a_rank_alone_is_done_when_it_is_idle() {
        let mut token = Token::new(0, 1);
        assert_eq!(token.step(RULE, true, false), Step::Nothing);
        assert_eq!(token.step(RULE, false, false), Step::Terminated);
    }

    #[test]
    fn a_white_round_ends_and_a_black_one_starts_another() {
        let mut ranks: Vec<Token> = (0..3).map(|rank| Token::new(rank, 3)).collect();
        // Rank 2 sent work down to rank 1 before the token came.
        ranks[2].work_sent(RULE, 1);
        assert_eq!(ranks[2].colour(), Colour::Black);
        assert_eq!(ranks[0].step(RULE, false, false), Step::Send(1, Colour::White));
        assert_eq!(ranks[0].step(RULE, false, false), Step::Nothing, "there is one token only");
        ranks[1].receive(Colour::White);
        assert_eq!(ranks[1].step(RULE, true, false), Step::Nothing, "busy ranks hold it");
        assert_eq!(ranks[1].step(RULE, false, true), Step::Nothing, "so do those that wait for an answer");
        assert_eq!(ranks[1].step(RULE, false, false), Step::Send(2, Colour::White));
        ranks[2].receive(Colour::White);
        assert_eq!(ranks[2].step(RULE, false, false), Step::Send(0, Colour::Black));
        assert_eq!(ranks[2].colour(), Colour::White, "blackness goes with the token");
        ranks[0].receive(Colour::Black);
        assert_eq!(ranks[0].step(RULE, true, false), Step::Nothing);
        assert_eq!(ranks[0].step(RULE, false, false), Step::Send(1, Colour::White), "a new round");
        ranks[1].receive(Colour::White);
        assert_eq!(ranks[1].step(RULE, false, false), Step::Send(2, Colour::White));
        ranks[2].receive(Colour::White);
        assert_eq!(ranks[2].step(RULE, false, false), Step::Send(0, Colour::White));
        ranks[0].receive(Colour::White);
        assert_eq!(ranks[0].step(RULE, false, true), Step::Nothing, "an answer is still to come");
        assert_eq!(ranks[0].step(RULE, false, false), Step::Terminated);
    }

    #[test]
    fn work_sent_upwards_does_not_blacken() {
        let mut token = Token::new(1, 3);
        token.work_sent(RULE, 2);
        assert_eq!(token.colour(), Colour::White);
        token.work_sent(RULE, 0);
        assert_eq!(token.colour(), Colour::Black);
    }

    /// Passes the token from rank to rank, all of them without work, until one holds it back, and returns whether rank
    /// 0 declared termination. `asking` is the rank with a request open.
    fn circulate(rule: Rule, ranks: &mut [Token], asking: Option<usize>) -> bool {
        let mut at = ranks.iter().position(|rank| rank.held.is_some()).unwrap_or(0);
        for _ in 0..4 * ranks.len() {
            match ranks[at].step(rule, false, asking == Some(at)) {
                Step::Nothing => return false,
                Step::Terminated => return true,
                Step::Send(to, colour) => {
                    at = to as usize;
                    ranks[at].receive(colour);
                }
            }
        }
        panic!("the token goes round for ever");
    }

    #[test]
    fn work_that_goes_back_slower_than_the_token_is_waited_for() {
        // Rank 1 asked rank 2, which answered with its last work. That is under way for as long as we like.
        for (rule, ends_early) in [(Rule::AS_PUBLISHED, true), (Rule::SOUND, false)] {
            let mut ranks: Vec<Token> = (0..3).map(|rank| Token::new(rank, 3)).collect();
            ranks[2].work_sent(rule, 1);
            // As published, the first round comes back black and the second one white.
            assert_eq!(circulate(rule, &mut ranks, Some(1)), ends_early, "{rule:?}");
            // Once it has arrived and was worked off, the token goes on.
            assert!(ends_early || circulate(rule, &mut ranks, None));
        }
    }

    #[test]
    fn work_that_goes_forward_past_the_token_is_waited_for() {
        for (rule, ends_early) in [(Rule::AS_PUBLISHED, true), (Rule::SOUND, false)] {
            let mut ranks: Vec<Token> = (0..3).map(|rank| Token::new(rank, 3)).collect();
            ranks[0].work_sent(rule, 2);
            assert_eq!(circulate(rule, &mut ranks, Some(2)), ends_early, "{rule:?}");
            assert!(ends_early || circulate(rule, &mut ranks, None));
        }
    }

    #[test]
    fn work_that_moves_behind_the_token_makes_another_round() {
        let mut ranks: Vec<Token> = (0..3).map(|rank| Token::new(rank, 3)).collect();
        assert_eq!(ranks[0].step(RULE, false, false), Step::Send(1, Colour::White));
        ranks[1].receive(Colour::White);
        assert_eq!(ranks[1].step(RULE, false, false), Step::Send(2, Colour::White));
        // With the token on its way to rank 2, that rank gives work to rank 1, which the token has passed.
        ranks[2].work_sent(RULE, 1);
        ranks[2].receive(Colour::White);
        assert_eq!(ranks[2].step(RULE, false, false), Step::Send(0, Colour::Black));
        ranks[0].receive(Colour::Black);
        assert_eq!(ranks[0].step(RULE, false, false), Step::Send(1, Colour::White));
        ranks[1].receive(Colour::White);
        assert_eq!(ranks[1].step(RULE, true, false), Step::Nothing, "rank 1 has that work");
        assert!(circulate(RULE, &mut ranks, None), "and when that is done, all is");
    }
}
