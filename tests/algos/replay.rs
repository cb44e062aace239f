//! The replay buffers compared with plain Rust: they return the stored transitions and no others.

use std::collections::{BTreeMap, BTreeSet};

use podracer::rl::buffers::frames::{FrameBuffer, FrameTransition, SampledBatch};
use podracer::rl::buffers::prioritized::{
    PrioritizedBatch, PrioritizedFrameBuffer, PriorityOptions,
};
use podracer::rl::buffers::replay::{EpisodeStep, ReplayBuffer, Transition};
use podracer::rl::buffers::sum_tree::SumTree;
use podracer::trace::ops::constant;
use podracer::{Array, DType, Key, Tensor, TensorType, Tree, interpret, jit};

#[derive(Debug, Clone, Tree)]
struct Item<T> {
    obs: T,
    number: T,
}

type Small = ReplayBuffer<Tensor, Item<Tensor>>;

fn key(seed: u64) -> Key<Array> {
    Key::new(seed)
}

fn items(numbers: &[i32]) -> Item<Array> {
    let obs: Vec<f32> = numbers.iter().flat_map(|&k| [k as f32, -k as f32]).collect();
    Item { obs: Array::new([numbers.len(), 2], &obs).unwrap(), number: Array::from(numbers) }
}

#[test]
fn a_buffer_keeps_the_last_transitions() {
    let new = interpret(|()| -> Small {
        let number = TensorType::scalar(DType::I32);
        ReplayBuffer::new(6, Item { obs: TensorType::new(DType::F32, [2]), number })
    });
    let add = interpret(|(replay, rows): (Small, Item<Tensor>)| replay.add(rows));
    let draw = interpret(|(replay, key): (Small, Key<Tensor>)| replay.sample(key, 200));
    let mut replay = new.call(()).unwrap();
    let nothing = draw.call((replay.clone(), key(1))).unwrap();
    assert!(nothing.number.to_vec::<i32>().unwrap().iter().all(|&k| k == 0));
    // One at a time, in pieces that divide the capacity, and in such that do not and wrap around.
    let mut all = Vec::new();
    for (i, n) in [1, 2, 1, 4, 4, 6, 5, 3].into_iter().enumerate() {
        let numbers: Vec<i32> = (0..n).map(|k| 100 * (i as i32 + 1) + k).collect();
        all.extend_from_slice(&numbers);
        replay = add.call((replay, items(&numbers))).unwrap();
        let count = replay.count.item::<i32>().unwrap() as usize;
        assert_eq!(count, all.len().min(6));
        let kept: BTreeSet<i32> = all[all.len() - count..].iter().copied().collect();
        let drawn = draw.call((replay.clone(), key(i as u64))).unwrap();
        let numbers = drawn.number.to_vec::<i32>().unwrap();
        // 200 draws of at most 6 miss one with a probability of 1e-15.
        assert_eq!(numbers.iter().copied().collect::<BTreeSet<_>>(), kept, "addition {i}");
        // The leaves of a transition stay together.
        for (obs, k) in drawn.obs.to_vec::<f32>().unwrap().chunks(2).zip(numbers) {
            assert_eq!(obs, [k as f32, -k as f32]);
        }
    }
}

/// Steps of two environments, whose observations, actions and rewards are their number in order; every
/// fifth terminates and every seventh is truncated.
fn episode_steps(numbers: std::ops::Range<i32>) -> EpisodeStep<Array> {
    let n = numbers.len();
    let column = |f: fn(i32) -> f32| -> Vec<f32> { numbers.clone().map(f).collect() };
    let number = column(|k| k as f32);
    EpisodeStep {
        transition: Transition {
            obs: Array::new([n, 1], &number).unwrap(),
            action: Array::new([n, 1], &number).unwrap(),
            reward: Array::from(&number[..]),
            next_obs: Array::new([n, 1], &column(|k| k as f32 + 0.5)).unwrap(),
            terminated: Array::from(&column(|k| f32::from(k % 5 == 4))[..]),
        },
        truncated: Array::from(&column(|k| f32::from(k % 7 == 6))[..]),
    }
}

#[test]
fn n_step_transitions_end_with_the_episode_and_the_newest_step() {
    const NUM_ENVS: usize = 2;
    type Buffer = ReplayBuffer<Tensor, EpisodeStep<Tensor>>;
    // A capacity that both environments do not share equally.
    for capacity in [8, 13, 60] {
        let new = interpret(|()| -> Buffer {
            let action = TensorType::new(DType::F32, [1]);
            ReplayBuffer::new(capacity, EpisodeStep::types(1, action))
        });
        let add = interpret(|(replay, rows): (Buffer, EpisodeStep<Tensor>)| replay.add(rows));
        let one_step = interpret(|(replay, key): (Buffer, Key<Tensor>)| replay.sample(key, 200));
        let mut replay = new.call(()).unwrap();
        let mut end = 0;
        for (i, steps) in [1, 2, 1, 3, 4, 2, 3, 1, 4].into_iter().enumerate() {
            let begin = end;
            end += (steps * NUM_ENVS) as i32;
            replay = add.call((replay, episode_steps(begin..end))).unwrap();
            for num_steps in [1, 2, 5] {
                let draw = interpret(|(replay, key): (Buffer, Key<Tensor>)| {
                    replay.sample_n_steps(key, 200, NUM_ENVS, num_steps, GAMMA)
                });
                let (batch, discounts) = draw.call((replay.clone(), key(i as u64))).unwrap();
                let numbers = |x: &Array| x.to_vec::<f32>().unwrap();
                let drawn = one_step.call((replay.clone(), key(i as u64))).unwrap().transition;
                assert_eq!(numbers(&batch.obs), numbers(&drawn.obs));
                assert_eq!(numbers(&batch.action), numbers(&drawn.action));
                if num_steps == 1 {
                    assert_eq!(numbers(&batch.reward), numbers(&drawn.reward));
                    assert_eq!(numbers(&batch.next_obs), numbers(&drawn.next_obs));
                    assert_eq!(numbers(&batch.terminated), numbers(&drawn.terminated));
                }
                let rows = numbers(&batch.reward).into_iter().zip(numbers(&batch.next_obs));
                let ends = numbers(&batch.terminated).into_iter().zip(numbers(&discounts));
                for ((first, row), last) in numbers(&batch.obs).into_iter().zip(rows).zip(ends) {
                    let (mut step, mut reward, mut discount) = (first as i32, 0.0, 1.0);
                    for k in 0.. {
                        reward += discount * f64::from(step);
                        discount *= GAMMA;
                        let done = step % 5 == 4 || step % 7 == 6;
                        if done || k + 1 == num_steps || step + NUM_ENVS as i32 >= end {
                            break;
                        }
                        step += NUM_ENVS as i32;
                    }
                    assert!((f64::from(row.0) - reward).abs() < 1e-4 * reward.max(1.0));
                    assert_eq!(row.1, step as f32 + 0.5);
                    assert_eq!(last.0, f32::from(step % 5 == 4));
                    assert!((f64::from(last.1) - discount).abs() < 1e-6);
                }
            }
        }
    }
}

#[test]
fn transitions_that_do_not_fit_end_the_trace() {
    let error = |capacity: usize, n: usize, dtype: DType| {
        let run = interpret(move |rows: Tensor| {
            let item = TensorType::new(DType::F32, [2]);
            let replay: ReplayBuffer<Tensor, Tensor> = ReplayBuffer::new(capacity, item);
            replay.add(rows).count
        });
        run.call(Array::zeros([n, 2], dtype)).unwrap_err().to_string()
    };
    assert!(error(3, 4, DType::F32).contains("4 transitions of 1 leaves for a buffer of 3"));
    assert!(error(3, 2, DType::I32).contains("of the rows is i32[2,2], expected f32[2,2]"));
    assert!(error(0, 1, DType::F32).contains("a capacity of 0; it must be 1 to 2147483647"));
    if cfg!(target_os = "linux") {
        // More than any machine has.
        let run = interpret(|()| {
            let item = TensorType::new(DType::F32, [1 << 30]);
            let replay: ReplayBuffer<Tensor, Tensor> = ReplayBuffer::new(i32::MAX as usize, item);
            replay.count
        });
        let large = run.call(()).unwrap_err().to_string();
        assert!(large.contains("2147483647 transitions of 4294967296 bytes take"), "{large}");
        assert!(large.contains("GB free; give a smaller --buffer-size"), "{large}");
        assert!(large.contains("tests/algos/replay.rs"), "{large}");
    }
}

const ENVS: usize = 2;
const GAMMA: f64 = 0.5;

/// One step of one environment, as the host remembers it.
#[derive(Clone, Debug)]
struct Step {
    frame: i32,
    age: i32,
    action: i32,
    reward: f32,
    terminated: bool,
    truncated: bool,
}

/// Steps of two environments whose episodes end at different times and in both ways. Every frame has
/// a number of its own; the reward and the action follow from it.
fn history(steps: usize) -> Vec<[Step; ENVS]> {
    let mut ages = [0; ENVS];
    let step = |t: usize, env: usize, age: &mut i32| {
        let frame = (t * ENVS + env) as i32 + 1;
        let length = if env == 0 { 5 } else { 7 };
        let over = t % length == length - 1;
        let cut = over && (t / length) % 2 == env;
        let step = Step {
            frame,
            age: *age,
            action: frame % 3,
            reward: (frame % 5) as f32,
            terminated: over && !cut,
            truncated: cut,
        };
        *age = if over { 0 } else { *age + 1 };
        step
    };
    (0..steps).map(|t| std::array::from_fn(|env| step(t, env, &mut ages[env]))).collect()
}

fn frame_transitions(steps: &[[Step; ENVS]]) -> FrameTransition<Array> {
    let shape = [steps.len(), ENVS];
    let ints = |of: fn(&Step) -> i32| {
        let values: Vec<i32> = steps.iter().flatten().map(of).collect();
        Array::new(shape, &values).unwrap()
    };
    let flags = |of: fn(&Step) -> bool| {
        let values: Vec<bool> = steps.iter().flatten().map(of).collect();
        Array::new(shape, &values).unwrap()
    };
    let rewards: Vec<f32> = steps.iter().flatten().map(|step| step.reward).collect();
    let frames: Vec<i32> = steps.iter().flatten().flat_map(|s| [s.frame, -s.frame]).collect();
    FrameTransition {
        frame: Array::new([steps.len(), ENVS, 2], &frames).unwrap(),
        age: ints(|step| step.age),
        action: ints(|step| step.action),
        reward: Array::new(shape, &rewards).unwrap(),
        terminated: flags(|step| step.terminated),
        truncated: flags(|step| step.truncated),
    }
}

/// What was drawn of one transition: the stack, the action, the reward, the next stack, the
/// discount.
type Row = (Vec<i32>, i32, f32, Vec<i32>, f32);

/// All transitions that may be drawn from the last `length` steps, by their newest frame.
fn transitions(all: &[[Step; ENVS]], length: usize, stack: usize, n: usize) -> BTreeMap<i32, Row> {
    let full = all.len() >= length;
    let first = all.len().saturating_sub(length) + if full { stack - 1 } else { 0 };
    let mut rows = BTreeMap::new();
    for (t, env) in (first..all.len().saturating_sub(n)).flat_map(|t| [(t, 0), (t, 1)]) {
        let at = |t: usize| &all[t][env];
        let stack_at = |t: usize| -> Vec<i32> {
            (0..stack).rev().map(|k| at(t - k.min(at(t).age as usize)).frame).collect()
        };
        if at(t).truncated {
            continue;
        }
        let (mut reward, mut discount, mut after) = (0.0, 1.0, t);
        while after < t + n && discount > 0.0 && !at(after).truncated {
            reward += discount * at(after).reward;
            discount *= if at(after).terminated { 0.0 } else { GAMMA as f32 };
            after += 1;
        }
        rows.insert(at(t).frame, (stack_at(t), at(t).action, reward, stack_at(after), discount));
    }
    rows
}

fn rows(drawn: &SampledBatch<Array>, stack: usize) -> Vec<Row> {
    let stacks = |x: &Array| -> Vec<Vec<i32>> {
        let frames = x.to_vec::<i32>().unwrap();
        // Each frame is a number and its negative.
        assert!(frames.chunks(2).all(|pair| pair[0] == -pair[1]));
        let firsts: Vec<i32> = frames.chunks(2).map(|pair| pair[0]).collect();
        firsts.chunks(stack).map(<[i32]>::to_vec).collect()
    };
    let (obs, next) = (stacks(&drawn.obs), stacks(&drawn.next_obs));
    let action = drawn.action.to_vec::<i32>().unwrap();
    let reward = drawn.reward.to_vec::<f32>().unwrap();
    let discount = drawn.discount.to_vec::<f32>().unwrap();
    let row = |i: usize| (obs[i].clone(), action[i], reward[i], next[i].clone(), discount[i]);
    (0..obs.len()).map(row).collect()
}

fn check(found: &[Row], expected: &BTreeMap<i32, Row>, stack: usize) -> BTreeSet<i32> {
    found
        .iter()
        .map(|row| {
            let newest = row.0[stack - 1];
            let right = expected.get(&newest);
            let right = right.unwrap_or_else(|| panic!("frame {newest} cannot be drawn"));
            let (mut row, mut right) = (row.clone(), right.clone());
            if right.4 == 0.0 {
                // Nothing follows: what is shown as next does not count.
                (row.3, right.3) = (Vec::new(), Vec::new());
            }
            assert_eq!(row, right);
            newest
        })
        .collect()
}

#[test]
fn stacks_are_rebuilt_from_frames() {
    let frame = TensorType::new(DType::I32, [2]);
    for (stack, n_steps, new_steps) in [(4, 1, 2), (4, 3, 5), (1, 1, 3), (2, 4, 4)] {
        let length = 20;
        let new = interpret(|()| FrameBuffer::new(length * ENVS + 1, ENVS, stack, &frame));
        let add = interpret(|(frames, steps): (FrameBuffer<Tensor>, FrameTransition<Tensor>)| {
            frames.add(steps)
        });
        let draw = interpret(|(frames, key): (FrameBuffer<Tensor>, Key<Tensor>)| {
            frames.sample(key, 400, n_steps, GAMMA)
        });
        let all = history(63);
        let mut frames = new.call(()).unwrap();
        let mut count = 0;
        for (i, steps) in all.chunks(new_steps).enumerate() {
            frames = add.call((frames, frame_transitions(steps))).unwrap();
            count += steps.len();
            if count < 7 || i % 3 != 0 {
                continue;
            }
            let drawn = draw.call((frames.clone(), key(i as u64))).unwrap();
            let expected = transitions(&all[..count], length, stack, n_steps);
            let frames = check(&rows(&drawn, stack), &expected, stack);
            // 400 draws of at most 40 miss few.
            assert!(frames.len() * 10 >= expected.len() * 9, "{frames:?} of {expected:?}");
        }
    }
}

#[test]
fn compiled_buffers_sample_the_same_transitions() {
    let frame = TensorType::new(DType::I32, [2]);
    let all = history(12);
    let body = |(steps, key): (FrameTransition<Tensor>, Key<Tensor>)| {
        FrameBuffer::new(20 * ENVS, ENVS, 4, &frame).add(steps).sample(key, 50, 2, GAMMA)
    };
    let (host, device) = (interpret(body), jit(body));
    let found = rows(&host.call((frame_transitions(&all), key(3))).unwrap(), 4);
    assert_eq!(found, rows(&device.call((frame_transitions(&all), key(3))).unwrap(), 4));
}

#[test]
fn buffers_that_are_too_small_end_the_trace() {
    let frame = TensorType::new(DType::U8, [2]);
    let run = interpret(|()| FrameBuffer::new(9, 2, 4, &frame));
    let error = run.call(()).unwrap_err().to_string();
    assert!(
        error.contains("a capacity of 9 for 2 environments and stacks of 4; it must be more than"),
        "{error}"
    );
}

#[test]
fn sum_trees_sample_in_proportion() {
    for size in [1, 2, 5, 8] {
        let body = |(rows, priorities, sums): (Tensor, Tensor, Tensor)| {
            let tree = SumTree::new(size).set(rows, priorities);
            // A later change counts, also of what was zero.
            let tree = tree.set(constant([0i32]), constant([2.0f32]));
            (tree.total(), tree.find(sums), tree.get(rows))
        };
        let priorities: Vec<f32> = (0..size).map(|i| if i % 3 == 1 { 0.0 } else { 1.5 }).collect();
        let numbers: Vec<i32> = (0..size as i32).collect();
        let mut expected = priorities.clone();
        expected[0] = 2.0;
        let total: f32 = expected.iter().sum();
        let sums: Vec<f32> = (0..=64).map(|k| total * k as f32 / 64.0).collect();
        let inputs = || {
            let sums = Array::from(sums.as_slice());
            (Array::from(numbers.as_slice()), Array::from(priorities.as_slice()), sums)
        };
        for (all, found, kept) in
            [interpret(body).call(inputs()).unwrap(), jit(body).call(inputs()).unwrap()]
        {
            assert_eq!(all.item::<f32>().unwrap(), total);
            assert_eq!(kept.to_vec::<f32>().unwrap(), expected);
            for (sum, row) in sums.iter().zip(found.to_vec::<i32>().unwrap()) {
                let row = row as usize;
                assert!(expected[row] > 0.0, "row {row} of {expected:?} for {sum}");
                let before: f32 = expected[..row].iter().sum();
                assert!(before <= *sum && *sum <= before + expected[row], "{sum}: {row}");
            }
        }
    }
}

#[test]
fn transitions_are_sampled_by_priority() {
    let frame = TensorType::new(DType::I32, [2]);
    let (length, stack, new_steps) = (20, 4, 3);
    let options =
        PriorityOptions { n_steps: 2, gamma: GAMMA, alpha: 0.5, eps: 0.25, batch_size: 64 };
    type Buffer = PrioritizedFrameBuffer<Tensor>;
    let new =
        interpret(|()| PrioritizedFrameBuffer::new(length * ENVS, ENVS, stack, &frame, &options));
    let add =
        interpret(|(buffer, steps): (Buffer, FrameTransition<Tensor>)| buffer.add(steps, &options));
    let draw = interpret(|(buffer, key): (Buffer, Key<Tensor>)| {
        buffer.sample(key, constant(0.5f32), &options)
    });
    let update = interpret(|(buffer, indices, errors): (Buffer, Tensor, Tensor)| {
        buffer.update_priorities(indices, errors, &options)
    });
    let all = history(60);
    let mut buffer = new.call(()).unwrap();
    let mut count = 0;
    for (i, steps) in all.chunks(new_steps).enumerate() {
        buffer = add.call((buffer, frame_transitions(steps))).unwrap();
        count += steps.len();
        if count < 6 {
            continue;
        }
        let batch: PrioritizedBatch<Array> = draw.call((buffer.clone(), key(i as u64))).unwrap();
        let expected = transitions(&all[..count], length, stack, options.n_steps);
        let newest = check(&rows(&batch.transitions, stack), &expected, stack);
        let weights = batch.weights.to_vec::<f32>().unwrap();
        assert!(weights.iter().all(|w| *w > 0.0 && *w <= 1.0), "{weights:?}");
        if i % 4 != 3 {
            // All alike so far, or again: the strata reach all there are.
            let errors = Array::new([64], &[0.75f32; 64]).unwrap();
            if i < 4 {
                assert_eq!(newest.len(), expected.len());
                assert!(weights.iter().all(|w| *w == 1.0), "{weights:?}");
            }
            buffer = update.call((buffer, batch.indices, errors)).unwrap();
        } else {
            // One environment's are now nine times as likely to be drawn as the other's.
            let picked = batch.indices.to_vec::<i32>().unwrap();
            let error = |row: &i32| if row % 2 == 0 { 20.0f32 } else { 0.0 };
            let errors: Vec<f32> = picked.iter().map(error).collect();
            let errors = Array::from(errors.as_slice());
            buffer = update.call((buffer, batch.indices, errors)).unwrap();
        }
    }
    // Every frame that was drawn last and is still there has the priority of its error.
    buffer = add.call((buffer, frame_transitions(&all[..new_steps]))).unwrap();
    let batch = draw.call((buffer, key(99))).unwrap();
    let even = batch.indices.to_vec::<i32>().unwrap().iter().filter(|row| *row % 2 == 0).count();
    assert!(even > 40, "{even} of 64");
}
