//! The pool inside compiled code: `reset`, `step`, `send` and `recv` as traced functions, so that a
//! whole rollout is one compiled loop.
//!
//! The interface is EnvPool's `xla()`, with three differences. A call consumes its [`Handle`], so
//! steps out of order do not compile. `vmap` splits the rows among its examples. And an error in an
//! environment is the error of the call.
//!
//! Environments of JAX are Programs. One synchronous pool of them has no calls: its steps and resets
//! become part of the compiled code, and the handle has the states of the environments.

mod traced;

use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::pool::EnvPool;
use crate::array::Array;
use crate::envs::env::spec::EnvSpec;
use crate::envs::pool::actions::Actions;
use crate::envs::pool::autoreset::Autoreset;
use crate::envs::pool::buffer::{Batch, Field};
use crate::envs::pool::columns::{TracedRows, step_columns};
use crate::error::{Error, Loc, Result};
use crate::spaces::Space;
use crate::trace::callback::raw_callback;
use crate::trace::callback::{CallbackKind, HostFn, HostView, HostViewMut, VmapMethod};
use crate::trace::literal::AlignedBytes;
use crate::trace::ops::where_;
use crate::trace::tensor::{at_line, fail_op};
use crate::trace::{DType, Element, Literal, Shape, Tensor, TensorType};
use crate::tree::Tree;
use traced::{TracedPool, TracedStates};

/// Handle of a pool in compiled code: the index of the pool, `i32[]`, and the states of its
/// environments if they are part of the compiled code.
///
/// Every call takes the handle and returns the next one. It is neither `Copy` nor `Clone`: code
/// that uses a handle twice does not compile, so all calls are ordered, within a run and between
/// runs.
#[derive(Debug, Tree)]
pub struct Handle<T> {
    pool: T,
    traced: Option<TracedStates<T>>,
}

/// Defines [`EnvStep`] with the columns that compiled code gets.
macro_rules! env_step {
    (
        batch_and_compiled_code { $(
            $(#[$doc:meta])*
            $name:ident $field:ident: $type:ident = |$row:ident| $value:expr, |$rows:ident| $traced:expr;
        )* }
        batch_only { $($batch_only:tt)* }
    ) => {
        /// Outputs of the environments: all arrays of a [`Batch`] but `discount` as tensors, with `n`
        /// rows.
        #[derive(Debug, Clone, Copy, Tree)]
        pub struct EnvStep<T> {
            /// [`Batch::obs`]: `[n, ...]`, of the observations' type.
            pub obs: T,
            $(
                #[doc = concat!("[`Batch::", stringify!($name), "`]: `", stringify!($type), "[n]`.")]
                pub $name: T,
            )*
            /// [`Batch::final_obs`]: `[n, ...]`, zeros where no episode ended. Present only if
            /// requested with [`XlaPool::with_final_obs`].
            pub final_obs: Option<T>,
        }

        /// Columns of an [`EnvStep`], in its order, and their element types.
        const COLUMNS: &[(Field, DType)] = &[$((Field::$field, <$type as Element>::DTYPE)),*];

        impl<T> EnvStep<T> {
            /// Takes the outputs in the order of the fields.
            fn from_outputs(mut outputs: impl Iterator<Item = T>) -> EnvStep<T> {
                let mut next = || outputs.next().expect("a call returns all columns");
                EnvStep { obs: next(), $($name: next(),)* final_obs: outputs.next() }
            }
        }

        impl EnvStep<Tensor> {
            /// Returns the step of environments that are part of the compiled code.
            fn from_traced(obs: Tensor, rows: &TracedRows, final_obs: Option<Tensor>) -> Self {
                $(
                    let $rows = rows;
                    let $name = $traced;
                )*
                EnvStep { obs, $($name,)* final_obs }
            }
        }
    };
}
step_columns!(env_step);

impl EnvStep<Tensor> {
    /// Returns `bool[n]`: true where the episode terminated or was truncated.
    #[track_caller]
    pub fn done(&self) -> Tensor {
        self.terminated | self.truncated
    }

    /// Returns `bool[n]`: true where the episode was truncated and did not terminate.
    #[track_caller]
    pub fn truncated_only(&self) -> Tensor {
        self.truncated & !self.terminated
    }
}

/// Pools that compiled code steps. See [`EnvPool::xla`]. Clones step the same pools.
#[derive(Debug, Clone)]
pub struct XlaPool {
    shared: Arc<Shared>,
    reset: HostFn,
    async_reset: HostFn,
    recv: HostFn,
    send: HostFn,
    step: HostFn,
    rows: usize,
    final_obs: bool,
    /// Environments that are part of the compiled code; `None` if the pool steps them.
    traced: Option<Arc<TracedPool>>,
}

#[derive(Debug)]
struct Shared {
    spec: EnvSpec,
    autoreset: Autoreset,
    /// Number of rows of a batch of each pool.
    batch_size: usize,
    pools: Vec<Mutex<EnvPool>>,
}

/// Kind of the host callbacks: `vmap` makes one call for all examples. The handle orders the calls,
/// within and between runs.
const KIND: CallbackKind = CallbackKind::Io { ordered: false, vmap: VmapMethod::BroadcastAll };

impl Batch {
    /// Returns a copy of [`Batch::obs`] as an array, for any type of its elements.
    pub fn obs_array(&self) -> Array {
        let ty = TensorType::new(self.obs_dtype(), self.obs_shape());
        Array::from(Literal::from_bytes(ty, AlignedBytes::copy_of(self.obs_bytes())))
    }

    /// Returns the observations after the step and before a reset, as an array:
    /// [`Batch::final_obs`] in the rows that have one, [`Batch::obs`] in the others. A copy.
    pub fn next_obs_array(&self) -> Array {
        let ty = TensorType::new(self.obs_dtype(), self.obs_shape());
        let mut bytes = AlignedBytes::copy_of(self.obs_bytes());
        let row_bytes = self.obs_bytes().len() / self.len().max(1);
        for row in 0..self.len() {
            if let Some(last) = self.final_obs::<u8>(row) {
                bytes.as_mut()[row * row_bytes..][..row_bytes].copy_from_slice(last);
            }
        }
        Array::from(Literal::from_bytes(ty, bytes))
    }
}

impl EnvPool {
    /// Returns the handle for the first call, and the pool for compiled code.
    ///
    /// ```
    /// use podracer::envs::{EnvPool, EnvStep, Handle, PoolOptions};
    /// use podracer::trace::control::{ScanOptions, scan_with};
    /// use podracer::{Tensor, jit};
    ///
    /// let options = PoolOptions { num_envs: 4, ..Default::default() };
    /// let (handle, envs) = EnvPool::make("CartPole-v1", options)?.xla()?;
    ///
    /// // 32 steps of 4 environments: one compiled loop, in which the pole is pushed to where it
    /// // leans.
    /// let rollout = jit(|handle: Handle<Tensor>| {
    ///     let (handle, start) = envs.reset(handle);
    ///     let env_step = |(handle, obs): (Handle<Tensor>, Tensor), ()| {
    ///         let lean = obs.index_axis(1, 2);
    ///         let (handle, step) = envs.step(handle, lean.gt(0.0).to(podracer::DType::I32));
    ///         ((handle, step.obs), step)
    ///     };
    ///     let ((handle, _), steps) = scan_with(env_step, (handle, start.obs), (), ScanOptions::length(32));
    ///     (handle, steps)
    /// });
    /// let (_handle, steps): (_, EnvStep<_>) = rollout.call(handle)?;
    /// assert_eq!(steps.obs.shape().to_string(), "[32,4,4]");
    /// assert_eq!(steps.reward.to_vec::<f32>()?, [1.0; 32 * 4]);
    /// # Ok::<(), podracer::Error>(())
    /// ```
    ///
    /// A handle that is used twice does not compile:
    ///
    /// ```compile_fail,E0382
    /// use podracer::envs::{Handle, XlaPool};
    /// use podracer::Tensor;
    /// fn twice(envs: &XlaPool, handle: Handle<Tensor>, action: Tensor) {
    ///     envs.step(handle, action);
    ///     envs.step(handle, action);
    /// }
    /// ```
    ///
    /// # Errors
    /// None for one pool; see [`XlaPool::new`]. Errors of runs name the line of this call.
    #[track_caller]
    pub fn xla(self) -> Result<(Handle<Array>, XlaPool)> {
        let traced = TracedPool::of(&self).map(Arc::new);
        let (handle, mut pools) = XlaPool::new(vec![self])?;
        let pool = Array::from(handle.pool.to_vec::<i32>()?[0]);
        let states = traced.as_ref().map(|traced| traced.states());
        pools.traced = traced;
        Ok((Handle { pool, traced: states }, pools))
    }
}

impl XlaPool {
    /// Takes one pool for each device of a `pmap`: the handle is `i32[pools.len()]`, of which each
    /// device gets its own element.
    ///
    /// # Errors
    /// [`Error::Config`] if there are no pools, or if they differ in specification or batch size.
    #[track_caller]
    pub fn new(pools: Vec<EnvPool>) -> Result<(Handle<Array>, XlaPool)> {
        let Some(first) = pools.first() else {
            return Err(Error::Config("compiled code needs at least one pool".into()));
        };
        let (spec, batch_size) = (first.spec().clone(), first.batch_size());
        let autoreset = first.options().autoreset;
        for (k, pool) in pools.iter().enumerate() {
            let same = *pool.spec() == spec
                && pool.batch_size() == batch_size
                && pool.options().autoreset == autoreset;
            if !same {
                return Err(Error::Config(format!(
                    "pool {k} ({}, batches of {}, autoreset {:?}) differs from pool 0 ({}, \
                     batches of {batch_size}, autoreset {autoreset:?}): one compiled program \
                     steps them all",
                    pool.spec().id,
                    pool.batch_size(),
                    pool.options().autoreset,
                    spec.id,
                )));
            }
        }
        let indices: Vec<i32> = (0..pools.len() as i32).collect();
        let handle = Handle { pool: Array::from(indices), traced: None };
        let pools = pools.into_iter().map(Mutex::new).collect();
        let shared = Arc::new(Shared { spec, autoreset, batch_size, pools });
        let at = Location::caller();
        let function = |name, work: Work| {
            let shared = shared.clone();
            HostFn::new(name, at, move |operands, results| {
                let (handle, operands) = operands.split_first().expect("the handle comes first");
                let (next, results) = results.split_first_mut().expect("so does the next");
                next.bytes.copy_from_slice(handle.bytes);
                let mut pool = shared.pool_of(handle)?;
                match work(&mut pool, operands)? {
                    Some(batch) => shared.write(&batch, results),
                    None => Ok(()),
                }
            })
        };
        let pools = XlaPool {
            reset: function("env pool reset", |pool, _| pool.reset().map(Some)),
            async_reset: function("env pool reset", |pool, _| pool.async_reset().map(|()| None)),
            recv: function("env pool recv", |pool, _| pool.recv().map(Some)),
            send: function("env pool send", |pool, operands| {
                pool.send(actions(&operands[0]), ints(&operands[1])).map(|()| None)
            }),
            step: function("env pool step", |pool, operands| {
                pool.step(actions(&operands[0])).map(Some)
            }),
            shared,
            rows: batch_size,
            final_obs: false,
            traced: None,
        };
        Ok((handle, pools))
    }

    /// Returns these pools as one of `members` examples under `vmap` sees them: `reset` and `recv`
    /// return each example's share of the rows. (`step` and `send` take the number of rows from
    /// their actions.)
    ///
    /// ```
    /// use podracer::envs::{EnvPool, PoolOptions};
    /// use podracer::{DType, Tensor, jit, vmap};
    ///
    /// // Two agents with three environments each.
    /// let options = PoolOptions { num_envs: 6, ..Default::default() };
    /// let (handle, envs) = EnvPool::make("CartPole-v1", options)?.xla()?;
    /// let step = jit(|(handle, actions): (podracer::envs::Handle<Tensor>, Tensor)| {
    ///     let (handle, _) = envs.reset(handle);
    ///     let pool = handle.into_data();
    ///     vmap(|actions: Tensor| {
    ///         let handle = podracer::envs::Handle::from_data(pool);
    ///         envs.step(handle, actions).1.obs
    ///     })(actions)
    /// });
    /// let obs = step.call((handle, podracer::Array::zeros([2, 3], DType::I32)))?;
    /// assert_eq!(obs.shape().to_string(), "[2,3,4]");
    /// # Ok::<(), podracer::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] if the rows of a batch do not divide into that many shares.
    pub fn split(&self, members: usize) -> Result<XlaPool> {
        if members == 0 || !self.rows.is_multiple_of(members) {
            return Err(Error::Config(format!(
                "{} rows do not divide into {members} equal shares",
                self.rows
            )));
        }
        // The examples share one handle, so the pool has the states.
        let traced = if members == 1 { self.traced.clone() } else { None };
        Ok(XlaPool { rows: self.rows / members, traced, ..self.clone() })
    }

    /// Returns these pools with [`EnvStep::final_obs`], which costs a copy of the observations each
    /// step.
    ///
    /// # Errors
    /// [`Error::Config`] unless the pools reset in the same step: in other modes the observation
    /// itself is the last one of the episode.
    pub fn with_final_obs(&self) -> Result<XlaPool> {
        let autoreset = self.shared.autoreset;
        if autoreset != Autoreset::SameStep {
            return Err(Error::Config(format!(
                "final_obs is kept where the pool resets in the same step, and this pool's \
                 autoreset is {autoreset:?}: its obs is the last one of an ended episode"
            )));
        }
        Ok(XlaPool { final_obs: true, ..self.clone() })
    }

    /// Returns the last observations of the episodes that ended in `step`, `[n, ..]`: its
    /// [`final_obs`](EnvStep::final_obs), or its observations if the pool does not reset in the
    /// same step. The other rows have no meaning.
    ///
    /// # Errors
    /// Ends the trace if the pool resets in the same step and was made without
    /// [`XlaPool::with_final_obs`].
    #[track_caller]
    pub fn final_obs_of(&self, step: &EnvStep<Tensor>) -> Tensor {
        match step.final_obs {
            Some(obs) => obs,
            None if self.shared.autoreset != Autoreset::SameStep => step.obs,
            None => at_line(Location::caller(), || {
                let id = &self.shared.spec.id;
                fail_op(
                    "final_obs_of",
                    format!("{id}: the pool resets in the same step; use XlaPool::with_final_obs"),
                )
            }),
        }
    }

    /// Returns the observations `[N, ..]` to which the actions of a step led: final observations
    /// where an episode ended, and [`EnvStep::obs`], which follows a reset there, elsewhere.
    ///
    /// # Errors
    /// Ends the trace in the cases of [`final_obs_of`](XlaPool::final_obs_of).
    #[track_caller]
    pub fn next_obs_of(&self, step: &EnvStep<Tensor>) -> Tensor {
        let final_obs = self.final_obs_of(step);
        let mut done = step.done();
        while done.rank() < final_obs.rank() {
            done = done.expand_dims(-1);
        }
        where_(done.broadcast_to(final_obs.shape()), final_obs, step.obs)
    }

    /// Returns true if the environments are part of the compiled code, and their states part of the
    /// handle: those of JAX.
    pub fn is_traced(&self) -> bool {
        self.traced.is_some()
    }

    /// Returns these pools without environments that are part of the compiled code: the pool steps
    /// them, for callers that use it on the host too.
    pub fn untraced(&self) -> XlaPool {
        XlaPool { traced: None, ..self.clone() }
    }

    /// Returns the specification of the environments.
    pub fn spec(&self) -> &EnvSpec {
        &self.shared.spec
    }

    /// Returns the number of rows of the outputs of `reset`, `step` and `recv`.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of pools.
    pub fn num_pools(&self) -> usize {
        self.shared.pools.len()
    }

    /// Returns pool `k` on the host: for its finished episodes, pictures and states.
    ///
    /// Compiled code that calls this pool waits until the guard is dropped. Wait for running code
    /// ([`effects_barrier`](crate::jit::effects_barrier)) before calling this.
    ///
    /// # Panics
    /// If there is no such pool.
    pub fn pool(&self, k: usize) -> MutexGuard<'_, EnvPool> {
        lock(&self.shared.pools[k])
    }

    /// [`EnvPool::reset`] as a traced function.
    ///
    /// # Errors
    /// The run returns the errors of [`EnvPool::reset`].
    #[track_caller]
    pub fn reset(&self, handle: Handle<Tensor>) -> (Handle<Tensor>, EnvStep<Tensor>) {
        let Handle { pool, traced } = handle;
        match (&self.traced, traced) {
            (Some(envs), Some(states)) => {
                let (states, step) = envs.reset(states, self.final_obs);
                (Handle { pool, traced: Some(states) }, step)
            }
            (_, traced) => self.call(&self.reset, Handle { pool, traced }, &[], self.rows),
        }
    }

    /// [`EnvPool::async_reset`] as a traced function.
    ///
    /// # Errors
    /// The run returns the errors of [`EnvPool::async_reset`].
    #[track_caller]
    pub fn async_reset(&self, handle: Handle<Tensor>) -> Handle<Tensor> {
        Self::expect_host("env pool async_reset", &handle);
        let pool = raw_callback(self.async_reset.clone(), KIND, vec![Self::ty()], &[handle.pool]);
        Handle { pool: pool[0], ..handle }
    }

    /// [`EnvPool::step`] as a traced function: `actions` are `i32[n]` for `Discrete`, `i32[n, k]` for
    /// `MultiDiscrete`, `f32[n, ..]` for `Box`.
    ///
    /// Environments of JAX, which compiled code steps itself, do not compare the actions with the space;
    /// before the first reset their states are zeros.
    ///
    /// Under `vmap` all examples together send one batch: the pool's rows are the rows of the first
    /// example, then those of the second, and so on.
    ///
    /// # Errors
    /// Ends the trace if `actions` have another type or other axes. The run returns the errors of
    /// [`EnvPool::step`], except for environments of JAX.
    #[track_caller]
    pub fn step(
        &self,
        handle: Handle<Tensor>,
        actions: Tensor,
    ) -> (Handle<Tensor>, EnvStep<Tensor>) {
        let rows = self.check("env pool step", actions, Location::caller());
        let Handle { pool, traced } = handle;
        match (&self.traced, traced) {
            (Some(envs), Some(states)) if rows == self.rows => {
                let (states, step) = envs.step(states, actions, self.final_obs);
                (Handle { pool, traced: Some(states) }, step)
            }
            (_, traced) => self.call(&self.step, Handle { pool, traced }, &[actions], rows),
        }
    }

    /// [`EnvPool::send`] as a traced function: actions as for [`step`](XlaPool::step), for the
    /// environments `env_ids`, `i32[n]`.
    ///
    /// # Errors
    /// The errors of [`step`](XlaPool::step), and an error if the number of `env_ids` is not that
    /// of the actions.
    #[track_caller]
    pub fn send(&self, handle: Handle<Tensor>, actions: Tensor, env_ids: Tensor) -> Handle<Tensor> {
        Self::expect_host("env pool send", &handle);
        let rows = self.check("env pool send", actions, Location::caller());
        let expected = TensorType::new(DType::I32, [rows]);
        if env_ids.ty() != expected {
            let found = env_ids.ty();
            at_line(Location::caller(), || {
                fail_op("env pool send", format!("env_ids are {found}, expected {expected}"))
            });
        }
        let operands = [handle.pool, actions, env_ids];
        let pool = raw_callback(self.send.clone(), KIND, vec![Self::ty()], &operands);
        Handle { pool: pool[0], ..handle }
    }

    /// [`EnvPool::recv`] as a traced function.
    ///
    /// # Errors
    /// The run returns the errors of [`EnvPool::recv`].
    #[track_caller]
    pub fn recv(&self, handle: Handle<Tensor>) -> (Handle<Tensor>, EnvStep<Tensor>) {
        Self::expect_host("env pool recv", &handle);
        self.call(&self.recv, handle, &[], self.rows)
    }

    /// Ends the trace if compiled code has the environments' states, which the host cannot step.
    #[track_caller]
    fn expect_host(name: &'static str, handle: &Handle<Tensor>) {
        if handle.traced.is_some() {
            at_line(Location::caller(), || {
                let problem = "environments of JAX have reset and step only; XlaPool::untraced steps \
                               them on the host";
                fail_op(name, problem)
            });
        }
    }

    fn ty() -> TensorType {
        TensorType::scalar(DType::I32)
    }

    /// Checks `actions` and returns the number of environments that they are for.
    fn check(&self, name: &'static str, actions: Tensor, at: Loc) -> usize {
        let space = &self.shared.spec.action;
        let found = actions.ty();
        let rows = found.shape.first().copied().unwrap_or(0);
        // Pools take the values of any `Box` as f32.
        let dtype = if matches!(space, Space::Box { .. }) { DType::F32 } else { DType::I32 };
        let expected = TensorType::new(dtype, space.shape().with_axis(0, rows));
        let id = &self.shared.spec.id;
        at_line(at, || {
            if found != expected || found.shape.rank() == 0 {
                let inner = space.shape();
                fail_op(
                    name,
                    format!(
                        "{id}: the actions are {found}, expected {dtype} with a first axis of \
                         environments, each of shape {inner}"
                    ),
                );
            }
            let whole = self.shared.batch_size;
            if rows == 0 || !whole.is_multiple_of(rows) {
                fail_op(
                    name,
                    format!(
                        "{id}: actions for {rows} environments do not make up a batch of {whole}"
                    ),
                );
            }
        });
        rows
    }

    #[track_caller]
    fn call(
        &self,
        f: &HostFn,
        handle: Handle<Tensor>,
        operands: &[Tensor],
        rows: usize,
    ) -> (Handle<Tensor>, EnvStep<Tensor>) {
        let space = &self.shared.spec.observation;
        let obs = TensorType::new(space.dtype(), space.shape().with_axis(0, rows));
        let column = |dtype| TensorType::new(dtype, Shape::from([rows]));
        let mut types = vec![Self::ty(), obs.clone()];
        types.extend(COLUMNS.iter().map(|&(_, dtype)| column(dtype)));
        types.extend(self.final_obs.then_some(obs));
        let operands: Vec<Tensor> = [handle.pool].iter().chain(operands).copied().collect();
        let mut outputs = raw_callback(f.clone(), KIND, types, &operands).into_iter();
        let pool = outputs.next().expect("the handle comes first");
        (Handle { pool, ..handle }, EnvStep::from_outputs(outputs))
    }
}

impl<T> Handle<T> {
    /// Returns the handle of the pool with index `data`, `i32[]`: the inverse of
    /// [`Handle::into_data`]. Calls with two handles of the same index are not ordered.
    pub fn from_data(data: T) -> Handle<T> {
        Handle { pool: data, traced: None }
    }

    /// Returns the index of the pool, `i32[]`, without states of environments: the pool steps them
    /// from then on, after a reset.
    pub fn into_data(self) -> T {
        self.pool
    }
}

/// Operation of a call on its pool.
type Work = fn(&mut EnvPool, &[HostView<'_>]) -> Result<Option<Batch>>;

impl Shared {
    /// Returns the pool whose index is the handle's value. Under `vmap` there is one value for each
    /// example.
    fn pool_of(&self, handle: &HostView<'_>) -> Result<MutexGuard<'_, EnvPool>> {
        let values = ints(handle);
        let index = values.first().copied().unwrap_or(-1);
        if values.iter().any(|&other| other != index) {
            return Err(Error::Env(format!(
                "{}: the examples of a vmap have handles of different pools ({values:?}); they are \
                 one batch, of one pool",
                self.spec.id
            )));
        }
        let pool = usize::try_from(index).ok().and_then(|index| self.pools.get(index));
        let pool = pool.ok_or_else(|| {
            Error::Env(format!(
                "{}: the handle names pool {index}, and there are {}",
                self.spec.id,
                self.pools.len()
            ))
        })?;
        Ok(lock(pool))
    }

    /// Copies a batch into the results of a call, which have the order of [`EnvStep`].
    fn write(&self, batch: &Batch, results: &mut [HostViewMut<'_>]) -> Result<()> {
        let (obs, results) = results.split_first_mut().expect("observations come first");
        let (columns, final_obs) = results.split_at_mut(COLUMNS.len());
        let rows = columns[0].ty.numel();
        if rows != batch.len() {
            return Err(Error::Env(format!(
                "{}: the call is for {rows} environments, and a batch of the pool has {}; all \
                 examples of a vmap together must be one batch",
                self.spec.id,
                batch.len()
            )));
        }
        obs.bytes.copy_from_slice(batch.obs_bytes());
        for (column, &(field, _)) in columns.iter_mut().zip(COLUMNS) {
            column.bytes.copy_from_slice(batch.bytes_of(field));
        }
        if let [result] = final_obs {
            let row_bytes = result.bytes.len() / rows;
            for (row, into) in result.bytes.chunks_exact_mut(row_bytes).enumerate() {
                match batch.final_obs::<u8>(row) {
                    Some(last) => into.copy_from_slice(last),
                    None => into.fill(0),
                }
            }
        }
        Ok(())
    }
}

fn actions<'a>(view: &HostView<'a>) -> Actions<'a> {
    match view.ty.dtype {
        DType::F32 => Actions::F32(bytemuck::cast_slice(view.bytes)),
        _ => Actions::I32(bytemuck::cast_slice(view.bytes)),
    }
}

fn ints<'a>(view: &HostView<'a>) -> &'a [i32] {
    bytemuck::cast_slice(view.bytes)
}

/// Locks the pool even if the mutex is poisoned: a pool that has failed returns errors itself.
fn lock(pool: &Mutex<EnvPool>) -> MutexGuard<'_, EnvPool> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}
