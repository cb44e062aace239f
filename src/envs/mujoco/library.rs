//! The C library `libmujoco`, loaded at run time: models, simulations, and access to their fields.
//!
//! All `unsafe` code of this family is here. Everything that the API supports goes through the API;
//! other struct fields are read by offsets, which are valid for one file only: its checksum is
//! compared before it is loaded.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::{Error, Result};
use crate::native::{Lock, Settings};

/// MuJoCo version whose struct layouts [`model`] and [`data`] describe.
const VERSION: &str = "3.3.7";
/// Native part that contains the simulator.
pub(super) const SIMULATOR: &str = "mujoco";
/// Native part that contains the models of the robots.
pub(super) const MODELS: &str = "gymnasium-mujoco";

/// `mjSTATE_INTEGRATION`: everything that the next step depends on.
const STATE_INTEGRATION: c_uint = (1 << 13) - 1;

/// Byte offsets in `mjModel` of 3.3.7 on 64-bit machines.
mod model {
    pub(super) const NQ: usize = 0;
    pub(super) const NV: usize = 4;
    pub(super) const NU: usize = 8;
    pub(super) const NBODY: usize = 16;
    pub(super) const NGEOM: usize = 60;
    pub(super) const NSITE: usize = 64;
    pub(super) const NCAM: usize = 68;
    pub(super) const NMAT: usize = 192;
    pub(super) const OPT_TIMESTEP: usize = 352;
    pub(super) const STAT_EXTENT: usize = 1304;
    pub(super) const QPOS0: usize = 1344;
    pub(super) const BODY_MASS: usize = 1496;
    pub(super) const GEOM_TYPE: usize = 1896;
    pub(super) const GEOM_MATID: usize = 1944;
    pub(super) const GEOM_SIZE: usize = 2008;
    pub(super) const GEOM_RGBA: usize = 2088;
    pub(super) const CAM_FOVY: usize = 2248;
    pub(super) const MAT_TEXREPEAT: usize = 3544;
    pub(super) const MAT_RGBA: usize = 3600;
    pub(super) const ACTUATOR_CTRLRANGE: usize = 4088;
}

/// Byte offsets in `mjData` of 3.3.7 on 64-bit machines.
mod data {
    pub(super) const WARNING: usize = 161_272;
    pub(super) const QPOS: usize = 161_656;
    pub(super) const QVEL: usize = 161_664;
    pub(super) const CTRL: usize = 161_696;
    pub(super) const XPOS: usize = 161_792;
    pub(super) const XIPOS: usize = 161_816;
    pub(super) const GEOM_XPOS: usize = 161_848;
    pub(super) const GEOM_XMAT: usize = 161_856;
    pub(super) const SITE_XPOS: usize = 161_864;
    pub(super) const CAM_XPOS: usize = 161_880;
    pub(super) const CAM_XMAT: usize = 161_888;
    pub(super) const CINERT: usize = 161_928;
    pub(super) const CVEL: usize = 162_184;
    pub(super) const QFRC_ACTUATOR: usize = 162_304;
    pub(super) const QFRC_CONSTRAINT: usize = 162_328;
    pub(super) const CFRC_EXT: usize = 162_360;
}

/// Warnings that mean a broken state: index in `mjData.warning`, and meaning.
const BAD_STATE: [(usize, &str); 4] = [
    (4, "a position is not a number, or huge"),
    (5, "a velocity is not a number, or huge"),
    (6, "an acceleration is not a number, or huge: the simulation is unstable"),
    (7, "an action is not a number, or huge"),
];

/// Numbers beyond this are bad, as in MuJoCo's own checks (`mjMAXVAL`).
const MAX_VALUE: f64 = 1e10;

type ModelPtr = *mut c_void;
type DataPtr = *mut c_void;

/// Functions of the library, which stays loaded until the process ends.
struct Library {
    load_xml:
        unsafe extern "C-unwind" fn(*const c_char, *const c_void, *mut c_char, c_int) -> ModelPtr,
    delete_model: unsafe extern "C-unwind" fn(ModelPtr),
    make_data: unsafe extern "C-unwind" fn(ModelPtr) -> DataPtr,
    delete_data: unsafe extern "C-unwind" fn(DataPtr),
    reset_data: unsafe extern "C-unwind" fn(ModelPtr, DataPtr),
    forward: unsafe extern "C-unwind" fn(ModelPtr, DataPtr),
    step: unsafe extern "C-unwind" fn(ModelPtr, DataPtr),
    rne_post_constraint: unsafe extern "C-unwind" fn(ModelPtr, DataPtr),
    state_size: unsafe extern "C-unwind" fn(ModelPtr, c_uint) -> c_int,
    get_state: unsafe extern "C-unwind" fn(ModelPtr, DataPtr, *mut f64, c_uint),
    set_state: unsafe extern "C-unwind" fn(ModelPtr, DataPtr, *const f64, c_uint),
    name_to_id: unsafe extern "C-unwind" fn(ModelPtr, c_int, *const c_char) -> c_int,
    /// Folder with the models.
    models: PathBuf,
}

fn native(problem: String) -> Error {
    let help = "run `podracer fetch mujoco`, which installs it again; a package of yours that is \
                found first is installed again by your pip";
    Error::Native { problem, help: help.into() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded data is valid at every step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Library {
    /// Returns the library of this process; located, fetched if needed, and loaded at first use.
    fn get(settings: &Settings) -> Result<&'static Library> {
        static LOADED: Mutex<Option<&'static Library>> = Mutex::new(None);
        let mut loaded = lock(&LOADED);
        if let Some(library) = *loaded {
            return Ok(library);
        }
        let (path, models) = locate(settings)?;
        // Threads may be inside the library at any time, so it is never unloaded.
        let library = &*Box::leak(Box::new(Library::load(&path, models)?));
        *loaded = Some(library);
        Ok(library)
    }

    fn load(path: &Path, models: PathBuf) -> Result<Library> {
        let shown = path.display();
        // SAFETY: loading runs the library's initializers; the file is the pinned one, by its
        // checksum.
        let library = unsafe { libloading::Library::new(path) }
            .map_err(|error| native(format!("{shown} cannot be loaded: {error}")))?;
        let missing = |error| native(format!("{shown} is no MuJoCo library: {error}"));
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the type is the one that the header of this version declares.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(missing)?
            };
        }
        let version: unsafe extern "C-unwind" fn() -> *const c_char = symbol!("mj_versionString");
        // SAFETY: it takes nothing and returns a constant text.
        let version = unsafe { CStr::from_ptr(version()) };
        if version.to_bytes() != VERSION.as_bytes() {
            return Err(native(format!("{shown} is MuJoCo {version:?}, expected {VERSION}")));
        }
        type Handler = extern "C-unwind" fn(*const c_char);
        let on_error: *mut Option<Handler> = symbol!("mju_user_error");
        let on_warning: *mut Option<Handler> = symbol!("mju_user_warning");
        // SAFETY: these are variables of the library, read by it alone, and nothing of it is
        // running yet. Without handlers an error would exit the process.
        unsafe {
            *on_error = Some(unwind);
            *on_warning = Some(ignore);
        }
        let functions = Library {
            load_xml: symbol!("mj_loadXML"),
            delete_model: symbol!("mj_deleteModel"),
            make_data: symbol!("mj_makeData"),
            delete_data: symbol!("mj_deleteData"),
            reset_data: symbol!("mj_resetData"),
            forward: symbol!("mj_forward"),
            step: symbol!("mj_step"),
            rne_post_constraint: symbol!("mj_rnePostConstraint"),
            state_size: symbol!("mj_stateSize"),
            get_state: symbol!("mj_getState"),
            set_state: symbol!("mj_setState"),
            name_to_id: symbol!("mj_name2id"),
            models,
        };
        std::mem::forget(library);
        Ok(functions)
    }
}

/// Returns the library's file, whose checksum is the pinned one, and the folder of the models.
fn locate(settings: &Settings) -> Result<(PathBuf, PathBuf)> {
    let part = Lock::get().part(SIMULATOR)?;
    let member = part.wheel()?.member("library").expect("the lock file has it");
    let path = settings.locate(part)?.root.join(&member.path);
    let part = Lock::get().part(MODELS)?;
    let member = part.wheel()?.member("model").expect("the lock file has it");
    let model = settings.locate(part)?.root.join(&member.path);
    let folder = model.parent().expect("a file is in a folder");
    Ok((path, folder.to_path_buf()))
}

/// Handler of fatal errors of the library. It must not return to the point of the error; so it
/// unwinds, through C frames that have unwind tables and nothing to clean up, to
/// [`Model::simulate`].
extern "C-unwind" fn unwind(message: *const c_char) {
    // SAFETY: the library passes a text.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    resume_unwind(Box::new(Fatal(message)));
}

/// Handler of warnings, which are counted in `mjData`, where [`Simulation::check`] reads them.
extern "C-unwind" fn ignore(_message: *const c_char) {}

struct Fatal(String);

/// Runs `work`, which calls the library; converts a fatal error of the library to an error.
fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // Unwind safety: the caller drops what was being changed.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(
        |payload: Box<dyn Any + Send>| match payload.downcast::<Fatal>() {
            Ok(fatal) => Err(Error::Env(format!("MuJoCo: {}", fatal.0))),
            Err(panic) => resume_unwind(panic),
        },
    )
}

/// Compiled model, shared by all its simulations: it does not change while they step.
pub(super) struct Model {
    library: &'static Library,
    ptr: NonNull<c_void>,
    state_size: usize,
    nq: usize,
    nv: usize,
    nu: usize,
    nbody: usize,
    ngeom: usize,
    nsite: usize,
    ncam: usize,
    nmat: usize,
    /// Unused simulations: at most as many as threads have ever stepped at once.
    idle: Mutex<Vec<Data>>,
}

// SAFETY: the library reads a model while it steps and never writes it.
unsafe impl Send for Model {}
// SAFETY: as above; `idle` has its own lock.
unsafe impl Sync for Model {}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Model { nq, nv, nu, nbody, .. } = self;
        write!(f, "Model {{ nq: {nq}, nv: {nv}, nu: {nu}, nbody: {nbody} }}")
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: ours alone; the simulations in `idle` do not look at it when they are freed.
        unsafe { (self.library.delete_model)(self.ptr.as_ptr()) }
    }
}

/// One `mjData`.
struct Data {
    library: &'static Library,
    ptr: NonNull<c_void>,
}

// SAFETY: an `mjData` belongs to no thread; only one uses it at a time, as it has no `Sync`.
unsafe impl Send for Data {}

impl Drop for Data {
    fn drop(&mut self) {
        // SAFETY: made by `make_data`, ours alone.
        unsafe { (self.library.delete_data)(self.ptr.as_ptr()) }
    }
}

impl Model {
    /// Returns the model in `file`, which is read once and cached while it is in use.
    pub(super) fn load(file: &'static str) -> Result<Arc<Model>> {
        static MODELS: Mutex<Option<HashMap<&'static str, Weak<Model>>>> = Mutex::new(None);
        let mut models = lock(&MODELS);
        let models = models.get_or_insert_default();
        if let Some(model) = models.get(file).and_then(Weak::upgrade) {
            return Ok(model);
        }
        let model = Arc::new(Model::read(Library::get(&Settings::from_env()?)?, file)?);
        models.insert(file, Arc::downgrade(&model));
        Ok(model)
    }

    fn read(library: &'static Library, file: &str) -> Result<Model> {
        let path = library.models.join(file);
        let name = path.to_str().and_then(|path| CString::new(path).ok());
        let name = name.ok_or_else(|| native(format!("{} is not UTF-8", path.display())))?;
        let mut problem = [0u8; 1000];
        let ptr = caught(|| {
            let (text, size) = (problem.as_mut_ptr().cast(), problem.len() as c_int);
            // SAFETY: a path, no virtual files, and a buffer with its size.
            Ok(unsafe { (library.load_xml)(name.as_ptr(), std::ptr::null(), text, size) })
        })?;
        let Some(ptr) = NonNull::new(ptr) else {
            let problem = CStr::from_bytes_until_nul(&problem).unwrap_or_default();
            let problem = problem.to_string_lossy();
            return Err(native(format!("{}: {problem}", path.display())));
        };
        // SAFETY: the offsets are those of `mjModel` in this version.
        let size = |offset| unsafe { ptr.byte_add(offset).cast::<c_int>().read() as usize };
        // SAFETY: the model is a whole one.
        let state_size = unsafe { (library.state_size)(ptr.as_ptr(), STATE_INTEGRATION) };
        Ok(Model {
            library,
            ptr,
            state_size: state_size as usize,
            nq: size(model::NQ),
            nv: size(model::NV),
            nu: size(model::NU),
            nbody: size(model::NBODY),
            ngeom: size(model::NGEOM),
            nsite: size(model::NSITE),
            ncam: size(model::NCAM),
            nmat: size(model::NMAT),
            idle: Mutex::default(),
        })
    }

    /// Returns the number of elements of a state.
    pub(super) fn state_size(&self) -> usize {
        self.state_size
    }

    pub(super) fn nq(&self) -> usize {
        self.nq
    }

    pub(super) fn nv(&self) -> usize {
        self.nv
    }

    pub(super) fn nu(&self) -> usize {
        self.nu
    }

    /// Returns the seconds per physics step.
    pub(super) fn timestep(&self) -> f64 {
        // SAFETY: the offset is that of `opt.timestep`, a double inside the struct.
        unsafe { self.ptr.byte_add(model::OPT_TIMESTEP).cast::<f64>().read() }
    }

    /// Returns the default positions: `nq` numbers.
    pub(super) fn qpos0(&self) -> &[f64] {
        self.array(model::QPOS0, self.nq)
    }

    /// Returns the mass of each body.
    pub(super) fn body_mass(&self) -> &[f64] {
        self.array(model::BODY_MASS, self.nbody)
    }

    /// Returns the lowest and highest control of each actuator, alternating.
    pub(super) fn actuator_ctrlrange(&self) -> &[f64] {
        self.array(model::ACTUATOR_CTRLRANGE, 2 * self.nu)
    }

    /// Returns the type of each geom: `mjtGeom`.
    pub(super) fn geom_type(&self) -> &[c_int] {
        self.array(model::GEOM_TYPE, self.ngeom)
    }

    /// Returns the material of each geom, -1 for none.
    pub(super) fn geom_matid(&self) -> &[c_int] {
        self.array(model::GEOM_MATID, self.ngeom)
    }

    /// Returns three size parameters for each geom, whose meaning depends on its type.
    pub(super) fn geom_size(&self) -> &[f64] {
        self.array(model::GEOM_SIZE, 3 * self.ngeom)
    }

    /// Returns red, green, blue and opacity of each geom.
    pub(super) fn geom_rgba(&self) -> &[f32] {
        self.array(model::GEOM_RGBA, 4 * self.ngeom)
    }

    /// Returns red, green, blue and opacity of each material.
    pub(super) fn mat_rgba(&self) -> &[f32] {
        self.array(model::MAT_RGBA, 4 * self.nmat)
    }

    /// Returns how often each material's texture is repeated, along x and y.
    pub(super) fn mat_texrepeat(&self) -> &[f32] {
        self.array(model::MAT_TEXREPEAT, 2 * self.nmat)
    }

    /// Returns the vertical field of view of each camera, in degrees.
    pub(super) fn cam_fovy(&self) -> &[f64] {
        self.array(model::CAM_FOVY, self.ncam)
    }

    /// Returns the extent of the model, in metres.
    pub(super) fn extent(&self) -> f64 {
        // SAFETY: the offset is that of `stat.extent`, a double inside the struct.
        unsafe { self.ptr.byte_add(model::STAT_EXTENT).cast::<f64>().read() }
    }

    /// Returns a field of numbers: `T` is `f64`, `f32` or `c_int`, as the header declares the
    /// field.
    fn array<T: bytemuck::AnyBitPattern>(&self, offset: usize, len: usize) -> &[T] {
        if len == 0 {
            return &[];
        }
        // SAFETY: `offset` is that of a pointer to `len` numbers of this type, which live as long
        // as the model and do not change.
        unsafe {
            let start = self.ptr.byte_add(offset).cast::<*const T>().read();
            std::slice::from_raw_parts(start, len)
        }
    }

    /// Returns the index of the camera with this name, if there is one.
    pub(super) fn camera(&self, name: &'static CStr) -> Option<usize> {
        const CAMERA: c_int = 7; // mjOBJ_CAMERA
        // SAFETY: a whole model and a text.
        let id = unsafe { (self.library.name_to_id)(self.ptr.as_ptr(), CAMERA, name.as_ptr()) };
        usize::try_from(id).ok()
    }

    /// Returns the index of the body with this name.
    pub(super) fn body(&self, name: &'static CStr) -> Result<usize> {
        const BODY: c_int = 1; // mjOBJ_BODY
        // SAFETY: a whole model and a text.
        let id = unsafe { (self.library.name_to_id)(self.ptr.as_ptr(), BODY, name.as_ptr()) };
        usize::try_from(id).map_err(|_| native(format!("a model has no body {name:?}")))
    }

    /// Lends `work` a simulation in an arbitrary state, which `work` must set.
    ///
    /// All environments of a model share the few simulations that threads need at once, since an
    /// `mjData` is hundreds of kilobytes and the relevant state is much smaller. After an error the
    /// simulation is dropped.
    pub(super) fn simulate<T>(
        &self,
        work: impl FnOnce(&mut Simulation<'_>) -> Result<T>,
    ) -> Result<T> {
        // The memory of the last one returned is most likely still in a cache.
        let idle = lock(&self.idle).pop();
        let mut simulation =
            Simulation { model: self, data: idle.map_or_else(|| self.data(), Ok)? };
        let value = caught(|| work(&mut simulation))?;
        lock(&self.idle).push(simulation.data);
        Ok(value)
    }

    fn data(&self) -> Result<Data> {
        // SAFETY: a whole model.
        let ptr = caught(|| Ok(unsafe { (self.library.make_data)(self.ptr.as_ptr()) }))?;
        let ptr = NonNull::new(ptr).ok_or_else(|| Error::Env("MuJoCo: out of memory".into()))?;
        Ok(Data { library: self.library, ptr })
    }
}

/// A simulation on loan. Fields have the names of MuJoCo's `mjData`.
pub(super) struct Simulation<'a> {
    pub(super) model: &'a Model,
    data: Data,
}

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident: $offset:ident [$($size:tt)+],)*) => {
        impl Simulation<'_> {
            $($(#[$doc])*
            pub(super) fn $name(&self) -> &[f64] {
                let len = fields!(@len self.model, $($size)+);
                // SAFETY: `ptr` is a whole mjData, so at the offset is a pointer to `len` doubles
                // that live as long as it; they change only through `&mut self`.
                unsafe { std::slice::from_raw_parts(self.field(data::$offset), len) }
            })*
        }
    };
    (@len $model:expr, $count:literal $size:ident) => { $count * $model.$size };
    (@len $model:expr, $size:ident) => { $model.$size };
}

fields! {
    qpos: QPOS[nq],
    qvel: QVEL[nv],
    ctrl: CTRL[nu],
    /// Positions of the bodies' frames; like all fields below, as of the start of the last physics
    /// step.
    xpos: XPOS[3 nbody],
    /// Positions of the bodies' centers of mass.
    xipos: XIPOS[3 nbody],
    /// Positions of the geoms, and their axes: row-major matrices.
    geom_xpos: GEOM_XPOS[3 ngeom],
    geom_xmat: GEOM_XMAT[9 ngeom],
    site_xpos: SITE_XPOS[3 nsite],
    /// Positions of the cameras, and their axes: right, up, backwards.
    cam_xpos: CAM_XPOS[3 ncam],
    cam_xmat: CAM_XMAT[9 ncam],
    cinert: CINERT[10 nbody],
    cvel: CVEL[6 nbody],
    qfrc_actuator: QFRC_ACTUATOR[nv],
    qfrc_constraint: QFRC_CONSTRAINT[nv],
    /// External forces on bodies, as of the last [`Simulation::rne_post_constraint`].
    cfrc_ext: CFRC_EXT[6 nbody],
}

impl Simulation<'_> {
    /// # Safety
    /// `offset` must be that of a pointer to doubles.
    unsafe fn field(&self, offset: usize) -> *mut f64 {
        // SAFETY: by the caller's promise.
        unsafe { self.data.ptr.byte_add(offset).cast::<*mut f64>().read() }
    }

    fn model_and_data(&self) -> (ModelPtr, DataPtr) {
        (self.model.ptr.as_ptr(), self.data.ptr.as_ptr())
    }

    /// Starts an episode: sets everything to its default except positions and velocities, and
    /// computes all derived quantities.
    pub(super) fn reset(&mut self, qpos: &[f64], qvel: &[f64]) {
        let (model, data) = self.model_and_data();
        // SAFETY: a model and a simulation of it.
        unsafe { (self.model.library.reset_data)(model, data) };
        self.write(data::QPOS, self.model.nq, qpos);
        self.write(data::QVEL, self.model.nv, qvel);
        self.forward();
    }

    fn write(&mut self, offset: usize, len: usize, values: &[f64]) {
        // SAFETY: the callers name fields of `len` doubles, and `&mut self` is the only access.
        let field = unsafe { std::slice::from_raw_parts_mut(self.field(offset), len) };
        field.copy_from_slice(values);
    }

    /// Computes all quantities derived from the state; a step leaves those of its start.
    pub(super) fn forward(&mut self) {
        let (model, data) = self.model_and_data();
        // SAFETY: a model and a simulation of it.
        unsafe { (self.model.library.forward)(model, data) };
    }

    /// Sets the controls, which the library clamps to the actuators' range.
    pub(super) fn control(&mut self, action: &[f32]) {
        // SAFETY: `ctrl` has `nu` doubles, and `&mut self` is the only access.
        let ctrl = unsafe { std::slice::from_raw_parts_mut(self.field(data::CTRL), self.model.nu) };
        ctrl.iter_mut().zip(action).for_each(|(ctrl, &action)| *ctrl = action.into());
    }

    /// Takes `count` physics steps.
    pub(super) fn step(&mut self, count: u32) {
        let (model, data) = self.model_and_data();
        for _ in 0..count {
            // SAFETY: a model and a simulation of it.
            unsafe { (self.model.library.step)(model, data) };
        }
    }

    /// Computes [`cfrc_ext`](Simulation::cfrc_ext), which a step does not.
    pub(super) fn rne_post_constraint(&mut self) {
        let (model, data) = self.model_and_data();
        // SAFETY: a model and a simulation of it.
        unsafe { (self.model.library.rne_post_constraint)(model, data) };
    }

    /// Copies everything that the next step depends on to `state`: `state_size` numbers.
    pub(super) fn state(&self, state: &mut [f64]) {
        assert_eq!(state.len(), self.model.state_size);
        let (model, data) = self.model_and_data();
        // SAFETY: a model, a simulation of it, and a buffer of the size of its state.
        unsafe {
            (self.model.library.get_state)(model, data, state.as_mut_ptr(), STATE_INTEGRATION)
        };
    }

    /// Restores the state from a [`state`](Simulation::state).
    pub(super) fn set_state(&mut self, state: &[f64]) {
        assert_eq!(state.len(), self.model.state_size);
        let (model, data) = self.model_and_data();
        // SAFETY: a model, a simulation of it, and a state of this kind.
        unsafe { (self.model.library.set_state)(model, data, state.as_ptr(), STATE_INTEGRATION) };
    }

    /// Returns an error if the steps since the last reset met a broken state, after which the
    /// library resets the simulation, or ended in one.
    pub(super) fn check(&self) -> Result<()> {
        for (warning, meaning) in BAD_STATE {
            // `mjWarningStat` is two ints: the last subject of the warning, and its count.
            let offset = data::WARNING + 8 * warning;
            // SAFETY: the offset is inside the struct.
            let [about, count] =
                unsafe { self.data.ptr.byte_add(offset).cast::<[c_int; 2]>().read() };
            if count != 0 {
                return Err(Error::Env(format!("{meaning} (number {about})")));
            }
        }
        let bad = |x: &f64| x.is_nan() || x.abs() > MAX_VALUE;
        for (values, (_, meaning)) in [self.qpos(), self.qvel()].into_iter().zip(BAD_STATE) {
            if let Some(at) = values.iter().position(bad) {
                return Err(Error::Env(format!("{meaning} (number {at})")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_offsets_say() {
        let model = Model::load("half_cheetah.xml").unwrap();
        assert_eq!((model.nq, model.nv, model.nu, model.nbody), (9, 9, 6, 8));
        assert_eq!(model.timestep(), 0.01);
        assert_eq!(model.actuator_ctrlrange(), [-1.0, 1.0].repeat(6));
        assert!((model.body_mass().iter().sum::<f64>() - 14.0).abs() < 1e-12, "settotalmass");
        // A plane and capsules; only the plane has a material.
        assert_eq!(model.geom_type(), [0, 3, 3, 3, 3, 3, 3, 3, 3]);
        assert_eq!(model.geom_matid(), [0, -1, -1, -1, -1, -1, -1, -1, -1]);
        assert_eq!(&model.geom_size()[..4], [40.0, 40.0, 40.0, 0.046]);
        assert_eq!(&model.geom_rgba()[..8], [0.8, 0.9, 0.8, 1.0, 0.8, 0.6, 0.4, 1.0]);
        assert_eq!(
            (model.mat_rgba().len(), model.mat_texrepeat()),
            (8, &[60.0, 60.0, 1.0, 1.0][..])
        );
        assert_eq!((model.camera(c"track"), model.camera(c"wing")), (Some(0), None));
        assert_eq!(model.cam_fovy(), [45.0]);
        assert!(model.extent() > 1.0 && model.extent() < 200.0, "{}", model.extent());
        let torso = model.body(c"torso").unwrap();
        let qpos: Vec<f64> = (0..9).map(|i| 0.01 * f64::from(i)).collect();
        let qvel: Vec<f64> = (0..9).map(|i| 0.1 * f64::from(i)).collect();
        let values = model.simulate(|simulation| {
            simulation.reset(&qpos, &qvel);
            assert_eq!((simulation.qpos(), simulation.qvel()), (&qpos[..], &qvel[..]));
            // As the library's own function returns it: time, positions, velocities, ...
            let mut state = vec![0.0; model.state_size()];
            simulation.state(&mut state);
            assert_eq!((&state[1..10], &state[10..19]), (&qpos[..], &qvel[..]));
            // The torso slides along x and z from 0.7 up.
            assert_eq!(&simulation.xpos()[3 * torso..][..3], [0.0, 0.0, 0.7 + 0.01]);
            // The floor is at the origin, upright; the camera looks north.
            assert_eq!(&simulation.geom_xpos()[..3], [0.0; 3]);
            assert_eq!(&simulation.geom_xmat()[..9], [1., 0., 0., 0., 1., 0., 0., 0., 1.]);
            assert!(simulation.cam_xpos()[1] == -3.0, "{:?}", simulation.cam_xpos());
            let axes = simulation.cam_xmat()[..9].iter().map(|x| x.round());
            assert!(axes.eq([1., 0., 0., 0., 0., -1., 0., 1., 0.]), "{:?}", simulation.cam_xmat());
            Ok(simulation.cvel().to_vec())
        });
        assert!(values.unwrap().iter().any(|x| *x != 0.0));
        let error = model.body(c"wing").unwrap_err().to_string();
        assert!(error.contains("a model has no body \"wing\""), "{error}");
    }

    #[test]
    fn a_model_is_loaded_once_and_simulations_are_shared() {
        let (a, b) = (Model::load("swimmer.xml").unwrap(), Model::load("swimmer.xml").unwrap());
        assert!(Arc::ptr_eq(&a, &b));
        a.simulate(|_| a.simulate(|_| Ok(()))).unwrap();
        assert_eq!(lock(&a.idle).len(), 2);
        a.simulate(|_| Err::<(), _>(Error::Env("no".into()))).unwrap_err();
        assert_eq!(lock(&a.idle).len(), 1);
    }

    #[test]
    fn a_fatal_error_of_the_library_is_an_error() {
        let model = Model::load("reacher.xml").unwrap();
        let error = model.simulate(|simulation| {
            let (model, _) = simulation.model_and_data();
            // SAFETY: a whole model, and a signature that does not exist, which the library checks.
            Ok(unsafe { (simulation.model.library.state_size)(model, 1 << 30) })
        });
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("MuJoCo: mj_stateSize"), "{error}");
        assert_eq!(lock(&model.idle).len(), 0);
        model.simulate(|_| Ok(())).unwrap();
    }

    #[test]
    fn missing_and_damaged_parts_say_what_to_do() {
        let home = tempfile::tempdir().unwrap();
        let settings = Settings {
            home: home.path().into(),
            python_packages: false,
            fetch: false,
            ..Settings::from_env().unwrap()
        };
        let error = locate(&settings).unwrap_err().to_string();
        assert!(error.contains("mujoco (MuJoCo's physics library) is not installed"), "{error}");
        assert!(error.contains("pip install mujoco==3.3.7"), "{error}");

        // A file of the right size with other bytes.
        let part = Lock::get().part(SIMULATOR).unwrap();
        let wheel = part.wheel().unwrap();
        let member = wheel.member("library").unwrap();
        let path = settings.install_dir(part, wheel).join(&member.path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::File::create(&path).unwrap().set_len(member.bytes).unwrap();
        let error = locate(&settings).unwrap_err().to_string();
        assert!(error.contains("is damaged: its sha256 is"), "{error}");
        assert!(error.contains("podracer fetch mujoco"), "{error}");
    }
}
