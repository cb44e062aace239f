//! Compiled models of MuJoCo.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::ops::Range;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};

use super::library::{Library, lock};
use crate::error::{Error, Result};
use crate::native::Settings;

/// `mjSTATE_INTEGRATION`: everything that the next step depends on.
pub(super) const STATE_INTEGRATION: c_uint = (1 << 13) - 1;

/// Byte offsets in `mjModel` of 3.3.7 on 64-bit machines.
mod offset {
    pub(super) const NQ: usize = 0;
    pub(super) const NV: usize = 4;
    pub(super) const NU: usize = 8;
    pub(super) const NBODY: usize = 16;
    pub(super) const NGEOM: usize = 60;
    pub(super) const NSITE: usize = 64;
    pub(super) const NJNT: usize = 36;
    pub(super) const NCAM: usize = 68;
    pub(super) const NMAT: usize = 192;
    pub(super) const NSENSOR: usize = 216;
    pub(super) const NSENSORDATA: usize = 328;
    pub(super) const OPT_TIMESTEP: usize = 352;
    pub(super) const STAT_EXTENT: usize = 1304;
    pub(super) const QPOS0: usize = 1344;
    pub(super) const BODY_MASS: usize = 1496;
    pub(super) const JNT_TYPE: usize = 1656;
    pub(super) const JNT_QPOSADR: usize = 1664;
    pub(super) const JNT_DOFADR: usize = 1672;
    pub(super) const GEOM_TYPE: usize = 1896;
    pub(super) const GEOM_MATID: usize = 1944;
    pub(super) const GEOM_SIZE: usize = 2008;
    pub(super) const GEOM_RGBA: usize = 2088;
    pub(super) const CAM_FOVY: usize = 2248;
    pub(super) const MAT_TEXREPEAT: usize = 3544;
    pub(super) const MAT_RGBA: usize = 3600;
    pub(super) const ACTUATOR_CTRLLIMITED: usize = 4032;
    pub(super) const ACTUATOR_CTRLRANGE: usize = 4088;
    pub(super) const SENSOR_DIM: usize = 4232;
    pub(super) const SENSOR_ADR: usize = 4240;
}

/// Kind of a named object: `mjtObj`.
#[derive(Debug, Clone, Copy)]
enum Object {
    Body = 1,
    Joint = 3,
    Geom = 5,
    Site = 6,
    Camera = 7,
    Sensor = 20,
}

/// Model in MuJoCo's XML format, MJCF. MuJoCo reads it without a sandbox: use models that you trust.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Mjcf {
    /// Text of a model that needs no other files.
    Text(Cow<'static, str>),
    /// Path of a file. Paths in it, as of meshes, are relative to it.
    File(PathBuf),
}

/// Returns the model in `file` of the native part with Gymnasium's models.
pub(super) fn gymnasium_model(file: &str) -> Result<Mjcf> {
    Ok(Mjcf::File(Library::get(&Settings::from_env()?)?.models.join(file)))
}

/// MuJoCo's `mjModel`: a compiled model, shared by all its simulations, as it does not change while
/// they step.
pub struct MjModel {
    pub(super) library: &'static Library,
    pub(super) ptr: NonNull<c_void>,
    pub(super) state_size: usize,
    pub(super) nq: usize,
    pub(super) nv: usize,
    pub(super) nu: usize,
    pub(super) nbody: usize,
    pub(super) njnt: usize,
    pub(super) ngeom: usize,
    pub(super) nsite: usize,
    pub(super) ncam: usize,
    pub(super) nmat: usize,
    pub(super) nsensor: usize,
    pub(super) nsensordata: usize,
    /// Unused simulations: at most as many as threads have ever stepped at once.
    pub(super) idle: Mutex<Vec<Data>>,
}

// SAFETY: the library reads a model while it steps and never writes it.
unsafe impl Send for MjModel {}
// SAFETY: as above; `idle` has its own lock.
unsafe impl Sync for MjModel {}

impl std::fmt::Debug for MjModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let MjModel { nq, nv, nu, nbody, .. } = self;
        write!(f, "MjModel {{ nq: {nq}, nv: {nv}, nu: {nu}, nbody: {nbody} }}")
    }
}

impl Drop for MjModel {
    fn drop(&mut self) {
        // SAFETY: ours alone; the simulations in `idle` do not look at it when they are freed.
        unsafe { (self.library.delete_model)(self.ptr.as_ptr()) }
    }
}

/// One `mjData`.
pub(super) struct Data {
    pub(super) library: &'static Library,
    pub(super) ptr: NonNull<c_void>,
}

// SAFETY: an `mjData` belongs to no thread; only one uses it at a time, as it has no `Sync`.
unsafe impl Send for Data {}

impl Drop for Data {
    fn drop(&mut self) {
        // SAFETY: made by `make_data`, ours alone.
        unsafe { (self.library.delete_data)(self.ptr.as_ptr()) }
    }
}

impl MjModel {
    /// Returns the compiled model, which is read once and shared while it is in use.
    pub(super) fn load(mjcf: &Mjcf) -> Result<Arc<MjModel>> {
        static MODELS: Mutex<Option<HashMap<Mjcf, Weak<MjModel>>>> = Mutex::new(None);
        let library = Library::get(&Settings::from_env()?)?;
        let mut models = lock(&MODELS);
        let models = models.get_or_insert_default();
        if let Some(model) = models.get(mjcf).and_then(Weak::upgrade) {
            return Ok(model);
        }
        models.retain(|_, model| model.strong_count() > 0);
        let model = Arc::new(MjModel::read(library, mjcf)?);
        models.insert(mjcf.clone(), Arc::downgrade(&model));
        Ok(model)
    }

    fn read(library: &'static Library, mjcf: &Mjcf) -> Result<MjModel> {
        let ptr = match mjcf {
            Mjcf::File(path) => library.compile_file(path)?,
            Mjcf::Text(text) => library.compile_text(text)?,
        };
        // SAFETY: the offsets are those of `mjModel` in this version.
        let size = |offset| unsafe { ptr.byte_add(offset).cast::<c_int>().read() as usize };
        // SAFETY: the model is a whole one.
        let state_size = unsafe { (library.state_size)(ptr.as_ptr(), STATE_INTEGRATION) };
        Ok(MjModel {
            library,
            ptr,
            state_size: state_size as usize,
            nq: size(offset::NQ),
            nv: size(offset::NV),
            nu: size(offset::NU),
            nbody: size(offset::NBODY),
            njnt: size(offset::NJNT),
            ngeom: size(offset::NGEOM),
            nsite: size(offset::NSITE),
            ncam: size(offset::NCAM),
            nmat: size(offset::NMAT),
            nsensor: size(offset::NSENSOR),
            nsensordata: size(offset::NSENSORDATA),
            idle: Mutex::default(),
        })
    }

    /// Returns the number of elements of a state.
    pub(super) fn state_size(&self) -> usize {
        self.state_size
    }

    /// Returns the number of positions.
    pub fn nq(&self) -> usize {
        self.nq
    }

    /// Returns the number of velocities.
    pub fn nv(&self) -> usize {
        self.nv
    }

    /// Returns the number of actuators.
    pub fn nu(&self) -> usize {
        self.nu
    }

    /// Returns the seconds per physics step.
    pub fn timestep(&self) -> f64 {
        // SAFETY: the offset is that of `opt.timestep`, a double inside the struct.
        unsafe { self.ptr.byte_add(offset::OPT_TIMESTEP).cast::<f64>().read() }
    }

    /// Returns the default positions: `nq` numbers.
    pub fn qpos0(&self) -> &[f64] {
        self.array(offset::QPOS0, self.nq)
    }

    /// Returns the mass of each body, in kilograms.
    pub fn body_mass(&self) -> &[f64] {
        self.array(offset::BODY_MASS, self.nbody)
    }

    /// Returns the lowest and highest control of each actuator; infinite for one without limits.
    pub(super) fn control_range(&self) -> impl Iterator<Item = [f64; 2]> {
        let range = self.array::<f64>(offset::ACTUATOR_CTRLRANGE, 2 * self.nu);
        let limited = self.array::<u8>(offset::ACTUATOR_CTRLLIMITED, self.nu);
        range.chunks_exact(2).zip(limited).map(|(range, limited)| match limited {
            0 => [f64::NEG_INFINITY, f64::INFINITY],
            _ => [range[0], range[1]],
        })
    }

    /// Returns the type of each geom: `mjtGeom`.
    pub(super) fn geom_type(&self) -> &[c_int] {
        self.array(offset::GEOM_TYPE, self.ngeom)
    }

    /// Returns the material of each geom, -1 for none.
    pub(super) fn geom_matid(&self) -> &[c_int] {
        self.array(offset::GEOM_MATID, self.ngeom)
    }

    /// Returns three size parameters for each geom, whose meaning depends on its type.
    pub(super) fn geom_size(&self) -> &[f64] {
        self.array(offset::GEOM_SIZE, 3 * self.ngeom)
    }

    /// Returns red, green, blue and opacity of each geom.
    pub(super) fn geom_rgba(&self) -> &[f32] {
        self.array(offset::GEOM_RGBA, 4 * self.ngeom)
    }

    /// Returns red, green, blue and opacity of each material.
    pub(super) fn mat_rgba(&self) -> &[f32] {
        self.array(offset::MAT_RGBA, 4 * self.nmat)
    }

    /// Returns how often each material's texture is repeated, along x and y.
    pub(super) fn mat_texrepeat(&self) -> &[f32] {
        self.array(offset::MAT_TEXREPEAT, 2 * self.nmat)
    }

    /// Returns the vertical field of view of each camera, in degrees.
    pub(super) fn cam_fovy(&self) -> &[f64] {
        self.array(offset::CAM_FOVY, self.ncam)
    }

    /// Returns the extent of the model, in metres.
    pub(super) fn extent(&self) -> f64 {
        // SAFETY: the offset is that of `stat.extent`, a double inside the struct.
        unsafe { self.ptr.byte_add(offset::STAT_EXTENT).cast::<f64>().read() }
    }

    /// Returns a field of numbers: `T` is `f64`, `f32` or `c_int`, as the header declares the
    /// field.
    pub(super) fn array<T: bytemuck::AnyBitPattern>(&self, offset: usize, len: usize) -> &[T] {
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
    pub(super) fn camera(&self, name: &str) -> Option<usize> {
        self.id(Object::Camera, name)
    }

    /// Returns the index of the body with this name.
    ///
    /// # Errors
    /// [`Error::Env`] with the names that there are.
    pub fn body(&self, name: &str) -> Result<usize> {
        self.find(Object::Body, name, self.nbody)
    }

    /// Returns the index of the geom with this name.
    ///
    /// # Errors
    /// [`Error::Env`] with the names that there are.
    pub fn geom(&self, name: &str) -> Result<usize> {
        self.find(Object::Geom, name, self.ngeom)
    }

    /// Returns the index of the site with this name.
    ///
    /// # Errors
    /// [`Error::Env`] with the names that there are.
    pub fn site(&self, name: &str) -> Result<usize> {
        self.find(Object::Site, name, self.nsite)
    }

    /// Returns the places of a joint's positions and of its velocities among those of all joints.
    pub(super) fn joint(&self, name: &str) -> Result<(Range<usize>, Range<usize>)> {
        let id = self.find(Object::Joint, name, self.njnt)?;
        let number = |offset| self.array::<c_int>(offset, self.njnt)[id] as usize;
        // `mjtJoint`: free, ball, slide, hinge.
        let (positions, velocities) = match number(offset::JNT_TYPE) {
            0 => (7, 6),
            1 => (4, 3),
            _ => (1, 1),
        };
        let (qpos, qvel) = (number(offset::JNT_QPOSADR), number(offset::JNT_DOFADR));
        Ok((qpos..qpos + positions, qvel..qvel + velocities))
    }

    /// Returns the place of a sensor's numbers among those of all sensors.
    pub(super) fn sensor(&self, name: &str) -> Result<Range<usize>> {
        let id = self.find(Object::Sensor, name, self.nsensor)?;
        let number = |offset| self.array::<c_int>(offset, self.nsensor)[id] as usize;
        let start = number(offset::SENSOR_ADR);
        Ok(start..start + number(offset::SENSOR_DIM))
    }

    fn id(&self, object: Object, name: &str) -> Option<usize> {
        let name = CString::new(name).ok()?;
        let find = self.library.name_to_id;
        // SAFETY: a whole model and a text.
        let id = unsafe { find(self.ptr.as_ptr(), object as c_int, name.as_ptr()) };
        usize::try_from(id).ok()
    }

    /// Returns the index of one of `count` objects by its name.
    fn find(&self, object: Object, name: &str, count: usize) -> Result<usize> {
        self.id(object, name).ok_or_else(|| {
            let name_of = |id: usize| {
                // SAFETY: a whole model, and one of its objects; the text lives as long as the model.
                unsafe {
                    let name =
                        (self.library.id_to_name)(self.ptr.as_ptr(), object as c_int, id as c_int);
                    (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
                }
            };
            let kind = format!("{object:?}").to_lowercase();
            let names: Vec<String> =
                (0..count).filter_map(name_of).filter(|name| !name.is_empty()).collect();
            let names = if names.is_empty() { "none".to_string() } else { names.join(", ") };
            Error::Env(format!("the model has no {kind} named \"{name}\"; it has {names}"))
        })
    }
}
