//! A taxi and its passenger (Dietterich 2000), as gymnasium's `TaxiEnv`.

use super::table::{self, Table, Transition, check_probability};
use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome, restore_json, save_json};
use crate::error::Result;

const SIZE: usize = 5;
const ACTIONS: usize = 6;
/// Row and column of the four stands: red, green, yellow, blue.
const STANDS: [[usize; 2]; 4] = [[0, 0], [0, 4], [4, 0], [4, 3]];
const COLORS: [[u8; 3]; 4] = [[220, 60, 60], [60, 180, 60], [220, 200, 60], [60, 90, 220]];
/// Location of a passenger who is in the taxi.
const ABOARD: usize = 4;

/// Options of a taxi.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TaxiOptions {
    /// If true, the taxi may skid to either side of the requested direction, if it can go there.
    pub is_rainy: bool,
    /// Probability that the taxi does not skid in the rain.
    pub rainy_probability: f64,
    /// If true, a passenger may choose another destination when the taxi first moves with them.
    pub fickle_passenger: bool,
    /// Probability that a passenger does so.
    pub fickle_probability: f64,
}

impl Default for TaxiOptions {
    fn default() -> Self {
        TaxiOptions {
            is_rainy: false,
            rainy_probability: 0.8,
            fickle_passenger: false,
            fickle_probability: 0.3,
        }
    }
}

/// Drive south (0), north (1), east (2) and west (3) on 5 by 5 cells with walls; pick up the
/// passenger (4) at the one of four stands where they wait, and drop them off (5) at their
/// destination.
///
/// Observation: `((row * 5 + column) * 5 + passenger) * 4 + destination`, where the passenger's
/// location is a stand or 4 for the taxi. Reward -1 per step, 20 for delivering, -10 for an illegal
/// pick-up or drop-off. Terminates when the passenger is delivered.
#[derive(Debug, Clone)]
pub struct Taxi {
    id: &'static str,
    options: TaxiOptions,
    table: Table,
    state: usize,
    /// True if this passenger is going to choose another destination.
    fickle: bool,
}

impl Taxi {
    /// Makes `Taxi-v3`: without rain and without fickle passengers.
    pub fn v3() -> Taxi {
        Taxi::new("Taxi-v3", TaxiOptions::default()).expect("the default options are good")
    }

    /// Makes `Taxi-v4`. Returns an error for options that are not probabilities.
    pub fn v4(options: TaxiOptions) -> Result<Taxi> {
        Taxi::new("Taxi-v4", options)
    }

    fn new(id: &'static str, options: TaxiOptions) -> Result<Taxi> {
        check_probability(id, "rainy_probability", options.rainy_probability)?;
        check_probability(id, "fickle_probability", options.fickle_probability)?;
        let mut start = vec![0.0; SIZE * SIZE * 5 * 4];
        for (state, weight) in start.iter_mut().enumerate() {
            let Place { passenger, destination, .. } = Place::of(state);
            *weight = f64::from(passenger != ABOARD && passenger != destination);
        }
        let table = Table::new(start, ACTIONS, |state, action| {
            let place = Place::of(state);
            match action {
                4 => vec![place.pick_up()],
                5 => vec![place.drop_off()],
                _ => place.drive(action, options),
            }
        });
        Ok(Taxi { id, options, table, state: 0, fickle: false })
    }

    /// Returns the transition table, which ignores a fickle passenger's change of destination.
    pub fn table(&self) -> &Table {
        &self.table
    }
}

/// Fields that a state number encodes.
#[derive(Clone, Copy, PartialEq)]
struct Place {
    taxi: [usize; 2],
    passenger: usize,
    destination: usize,
}

impl Place {
    fn of(state: usize) -> Place {
        let cell = state / 20;
        let taxi = [cell / SIZE, cell % SIZE];
        Place { taxi, passenger: state / 4 % 5, destination: state % 4 }
    }

    fn state(self) -> usize {
        let [row, column] = self.taxi;
        ((row * SIZE + column) * 5 + self.passenger) * 4 + self.destination
    }

    fn came(self, probability: f64, reward: f64, terminated: bool) -> Transition {
        Transition { probability, state: self.state(), reward, terminated }
    }

    fn pick_up(self) -> Transition {
        if STANDS.get(self.passenger) == Some(&self.taxi) {
            return Place { passenger: ABOARD, ..self }.came(1.0, -1.0, false);
        }
        self.came(1.0, -10.0, false)
    }

    fn drop_off(self) -> Transition {
        match STANDS.iter().position(|&stand| stand == self.taxi) {
            Some(stand) if self.passenger == ABOARD => {
                let delivered = stand == self.destination;
                let reward = if delivered { 20.0 } else { -1.0 };
                Place { passenger: stand, ..self }.came(1.0, reward, delivered)
            }
            _ => self.came(1.0, -10.0, false),
        }
    }

    fn drive(self, heading: usize, options: TaxiOptions) -> Vec<Transition> {
        let to = self.toward(heading);
        if !options.is_rainy {
            return vec![to.came(1.0, -1.0, false)];
        }
        // For south, north, east, west: the heading to the left and to the right of each.
        let [left, right] = [[2, 3], [3, 2], [1, 0], [0, 1]][heading];
        // A taxi that cannot go ahead does not skid.
        let skid = |side| if to == self { self } else { self.toward(side) };
        let aside = (1.0 - options.rainy_probability) / 2.0;
        vec![
            to.came(options.rainy_probability, -1.0, false),
            skid(left).came(aside, -1.0, false),
            skid(right).came(aside, -1.0, false),
        ]
    }

    /// Returns the state one cell further, or the same state in front of a wall.
    fn toward(self, heading: usize) -> Place {
        let [row, column] = self.taxi;
        let taxi = match heading {
            0 => [(row + 1).min(SIZE - 1), column],
            1 => [row.saturating_sub(1), column],
            2 if open_to_the_east(row, column) => [row, column + 1],
            3 if column > 0 && open_to_the_east(row, column - 1) => [row, column - 1],
            _ => self.taxi,
        };
        Place { taxi, ..self }
    }
}

/// Returns true if there is neither a wall nor the edge on the east side of a cell.
fn open_to_the_east(row: usize, column: usize) -> bool {
    !matches!((row, column), (0 | 1, 1) | (3 | 4, 0 | 2) | (_, 4))
}

impl Env for Taxi {
    fn spec(&self) -> EnvSpec {
        self.table.spec(self.id, Some(200), Some(8.0))
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.state = self.table.draw_start(rng);
        let TaxiOptions { fickle_passenger, fickle_probability, .. } = self.options;
        self.fickle = fickle_passenger && rng.uniform(0.0, 1.0) < fickle_probability;
        table::observe(self.state, obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let came = self.table.draw(self.state, action.discrete(), rng);
        let (before, mut after) = (Place::of(self.state), Place::of(came.state));
        if self.fickle && before.passenger == ABOARD && before.taxi != after.taxi {
            self.fickle = false;
            // Draw one of the other three stands.
            let choice = rng.below(3) as usize;
            after.destination = choice + usize::from(choice >= before.destination);
        }
        self.state = after.state();
        table::observe(self.state, obs);
        Ok(StepOutcome::new(came.reward, came.terminated))
    }

    fn render(&mut self) -> Option<Frame> {
        // Cells and the spaces between them: walls are black.
        const WIDTH: usize = 2 * SIZE + 1;
        let mut cells = [[0; 3]; WIDTH * (SIZE + 2)];
        let place = Place::of(self.state);
        for row in 0..SIZE {
            for column in 0..SIZE {
                let at = (row + 1) * WIDTH + 2 * column + 1;
                cells[at] = [200; 3];
                if open_to_the_east(row, column) {
                    cells[at + 1] = [200; 3];
                }
                if let Some(stand) = STANDS.iter().position(|&stand| stand == [row, column]) {
                    // The destination is bright, and so is the stand of a waiting passenger.
                    let bright = stand == place.destination || stand == place.passenger;
                    cells[at] = COLORS[stand].map(|c| if bright { c } else { c / 2 + 90 });
                }
                if place.taxi == [row, column] {
                    let aboard = place.passenger == ABOARD;
                    cells[at] = if aboard { [90, 220, 90] } else { [250, 250, 90] };
                }
            }
        }
        Some(Frame::of_cells(&cells, WIDTH, 4))
    }

    fn save(&self) -> Result<Vec<u8>> {
        save_json(self.id, &(self.state, self.fickle))
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let valid = |&(state, _): &(usize, bool)| state < self.table.num_states();
        (self.state, self.fickle) = restore_json(self.id, state, valid)?;
        Ok(())
    }
}
