//! Blackjack (Sutton and Barto 2018, example 5.1), as gymnasium's `BlackjackEnv`.

use serde::{Deserialize, Serialize};

use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, ObsMut, StepOutcome, restore_json, save_json};
use crate::error::Result;
use crate::spaces::{Bound, Space};
use crate::trace::types::DType;

const ID: &str = "Blackjack-v1";

/// Rules of a game of blackjack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlackjackOptions {
    /// If true, a win with a natural (an ace and a ten dealt) pays 1.5. Ignored if `sab` is true.
    pub natural: bool,
    /// If true, the rules are those of Sutton and Barto: a natural wins unless the dealer has one
    /// too.
    pub sab: bool,
}

impl Default for BlackjackOptions {
    fn default() -> Self {
        BlackjackOptions { natural: false, sab: true }
    }
}

/// `Blackjack-v1`: stick (0) or take another card (1) to come nearer to 21 than the dealer, who
/// stops at 17.
///
/// Observation `i32[3]`: the player's sum, the card that the dealer shows (1 is an ace), 1 if the
/// player has an ace that counts 11 and else 0. Reward 1 for a win, -1 for a loss. Terminates when
/// the player sticks or exceeds 21.
#[derive(Debug, Clone)]
pub struct Blackjack {
    options: BlackjackOptions,
    cards: Cards,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Cards {
    player: Vec<i32>,
    dealer: Vec<i32>,
}

/// Draws a card from an infinite deck; jack, queen and king count 10.
fn draw(rng: &mut EnvRng) -> i32 {
    (rng.below(13) as i32 + 1).min(10)
}

/// Returns the best sum of a hand, and true if an ace counts 11 in it.
fn sum(hand: &[i32]) -> (i32, bool) {
    let low: i32 = hand.iter().sum();
    let usable_ace = hand.contains(&1) && low + 10 <= 21;
    (if usable_ace { low + 10 } else { low }, usable_ace)
}

/// Returns the score of a hand: its sum, or 0 above 21.
fn score(hand: &[i32]) -> i32 {
    let (sum, _) = sum(hand);
    if sum > 21 { 0 } else { sum }
}

fn is_natural(hand: &[i32]) -> bool {
    matches!(hand, [1, 10] | [10, 1])
}

impl Blackjack {
    /// Makes `Blackjack-v1`; gymnasium's registered rules are the default options.
    pub fn v1(options: BlackjackOptions) -> Blackjack {
        Blackjack { options, cards: Cards { player: vec![2, 2], dealer: vec![2, 2] } }
    }

    fn observe(&self, mut obs: ObsMut<'_>) {
        let (sum, usable_ace) = sum(&self.cards.player);
        obs.write(&[sum, self.cards.dealer[0], usable_ace.into()]);
    }

    /// Draws the dealer's cards and returns the reward.
    fn stick(&mut self, rng: &mut EnvRng) -> f64 {
        let Cards { player, dealer } = &mut self.cards;
        while sum(dealer).0 < 17 {
            dealer.push(draw(rng));
        }
        let won = f64::from((score(player) - score(dealer)).signum());
        let BlackjackOptions { natural, sab } = self.options;
        if sab && is_natural(player) && !is_natural(dealer) {
            1.0
        } else if !sab && natural && is_natural(player) && won == 1.0 {
            1.5
        } else {
            won
        }
    }
}

impl Env for Blackjack {
    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: ID.into(),
            observation: Space::Box {
                low: Bound::All(0.0),
                high: [31.0, 10.0, 1.0].into(),
                shape: [3].into(),
                dtype: DType::I32,
            },
            action: Space::Discrete { n: 2 },
            max_episode_steps: None,
            reward_threshold: None,
        }
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        let mut hand = || vec![draw(rng), draw(rng)];
        let dealer = hand();
        self.cards = Cards { player: hand(), dealer };
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let outcome = if action.discrete() == 0 {
            StepOutcome::new(self.stick(rng), true)
        } else {
            self.cards.player.push(draw(rng));
            let bust = score(&self.cards.player) == 0;
            StepOutcome::new(if bust { -1.0 } else { 0.0 }, bust)
        };
        self.observe(obs);
        Ok(outcome)
    }

    fn save(&self) -> Result<Vec<u8>> {
        save_json(ID, &self.cards)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        // At most 22 cards before a hand is bust, and the card that makes it bust.
        let hand = |cards: &[i32]| {
            (2..=23).contains(&cards.len()) && cards.iter().all(|card| (1..=10).contains(card))
        };
        let valid = |cards: &Cards| hand(&cards.player) && hand(&cards.dealer);
        self.cards = restore_json(ID, state, valid)?;
        Ok(())
    }
}
