//! Recipes for Programs: lists of small numbers, from which `cook` makes well-typed Programs. A
//! recipe shrinks by losing steps and by its numbers becoming smaller; what is left is still a
//! recipe.

use proptest::collection::vec;
use proptest::prelude::*;

/// A parameter of the Program.
#[derive(Debug, Clone)]
pub struct InputRecipe {
    pub dtype: u8,
    pub shape: Vec<u8>,
    /// NaN and infinities may be among its elements.
    pub special: bool,
    /// Denormal numbers may be among its elements.
    pub denormal: bool,
}

/// One equation, or a few that belong together.
#[derive(Debug, Clone)]
pub struct Step {
    /// Which operation.
    pub kind: u16,
    /// Which operands.
    pub picks: [u8; 4],
    /// Everything else about it.
    pub salt: u32,
    /// What is inside, if it is control flow.
    pub body: Vec<Step>,
}

#[derive(Debug, Clone)]
pub struct Recipe {
    /// Sizes of axes that shapes are made of, so that shapes meet.
    pub sizes: [u8; 3],
    pub inputs: Vec<InputRecipe>,
    pub steps: Vec<Step>,
}

fn input() -> impl Strategy<Value = InputRecipe> {
    let rarely = || prop::bool::weighted(0.15);
    (any::<u8>(), vec(any::<u8>(), 0..4), rarely(), rarely()).prop_map(
        |(dtype, shape, special, denormal)| InputRecipe { dtype, shape, special, denormal },
    )
}

fn step(depth: u32) -> BoxedStrategy<Step> {
    let plain = (any::<u16>(), any::<[u8; 4]>(), any::<u32>());
    if depth == 0 {
        return plain
            .prop_map(|(kind, picks, salt)| Step { kind, picks, salt, body: vec![] })
            .boxed();
    }
    (plain, prop_oneof![4 => Just(vec![]), 1 => vec(step(depth - 1), 1..5)])
        .prop_map(|((kind, picks, salt), body)| Step { kind, picks, salt, body })
        .boxed()
}

/// Any recipe.
pub fn recipe() -> impl Strategy<Value = Recipe> {
    let sizes = (0..4u8, 1..5u8, 1..4u8).prop_map(|(a, b, c)| [b, c, a]);
    (sizes, vec(input(), 1..4), vec(step(2), 1..12)).prop_map(|(sizes, inputs, steps)| Recipe {
        sizes,
        inputs,
        steps,
    })
}

/// Numbers out of one number.
pub struct Salt(pub u64);

impl Salt {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// One of `0..n`; 0 if there is none.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// One of `low..=high`.
    pub fn within(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as usize) as i64
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}
