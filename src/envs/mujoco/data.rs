//! Simulations of MuJoCo.

use std::ffi::c_int;
use std::ptr::NonNull;

use super::library::{DataPtr, ModelPtr, caught, lock};
use super::model::{Data, MjModel, STATE_INTEGRATION};
use crate::error::{Error, Result};

/// Byte offsets in `mjData` of 3.3.7 on 64-bit machines.
mod offset {
    pub(super) const WARNING: usize = 161_272;
    pub(super) const NCON: usize = 161_576;
    pub(super) const TIME: usize = 161_616;
    pub(super) const QPOS: usize = 161_656;
    pub(super) const QVEL: usize = 161_664;
    pub(super) const CTRL: usize = 161_696;
    pub(super) const SENSORDATA: usize = 161_768;
    pub(super) const XPOS: usize = 161_792;
    pub(super) const XQUAT: usize = 161_800;
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
    pub(super) const CONTACT: usize = 162_368;
}

/// Size of an `mjContact` of 3.3.7 on 64-bit machines, and byte offsets in it.
mod contact {
    pub(super) const SIZE: usize = 576;
    pub(super) const DIST: usize = 0;
    pub(super) const POS: usize = 8;
    pub(super) const GEOM: usize = 532;
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

/// MuJoCo's `mjData`: a simulation. Its methods have the names of `mjData`'s fields.
///
/// After a step, positions and velocities are new; everything that is derived from them is as of the
/// start of the last physics step, as in Gymnasium.
pub struct MjData<'a> {
    pub(super) model: &'a MjModel,
    data: Data,
}

impl std::fmt::Debug for MjData<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MjData {{ time: {}, qpos: {:?} }}", self.time(), self.qpos())
    }
}

/// Body of a simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Body {
    /// Position of its frame in the world, in metres.
    pub xpos: [f64; 3],
    /// Orientation of its frame: a unit quaternion, the real part first.
    pub xquat: [f64; 4],
    /// Velocity about its center of mass: three angular, three linear components.
    pub cvel: [f64; 6],
}

/// Joint of a simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Joint<'a> {
    /// Positions: 7 of a free joint, 4 of a ball joint, else 1.
    pub qpos: &'a [f64],
    /// Velocities: 6 of a free joint, 3 of a ball joint, else 1.
    pub qvel: &'a [f64],
}

/// Contact of two geoms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Contact {
    /// Indices of both geoms.
    pub geom: [usize; 2],
    /// Position in the world, in metres.
    pub pos: [f64; 3],
    /// Distance of the geoms, in metres; negative where they penetrate each other.
    pub dist: f64,
}

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident: $offset:ident [$($size:tt)+],)*) => {
        impl MjData<'_> {
            $($(#[$doc])*
            pub fn $name(&self) -> &[f64] {
                let len = fields!(@len self.model, $($size)+);
                self.numbers(offset::$offset, len)
            })*
        }
    };
    (@len $model:expr, $count:literal $size:ident) => { $count * $model.$size };
    (@len $model:expr, $size:ident) => { $model.$size };
}

fields! {
    /// Returns the positions of the joints: `nq` numbers.
    qpos: QPOS[nq],
    /// Returns the velocities of the joints: `nv` numbers.
    qvel: QVEL[nv],
    /// Returns the controls: `nu` numbers.
    ctrl: CTRL[nu],
    /// Returns what all sensors measured, in the model's order.
    sensordata: SENSORDATA[nsensordata],
    /// Returns the positions of the bodies' frames: three numbers a body.
    xpos: XPOS[3 nbody],
    /// Returns the orientations of the bodies' frames: a quaternion a body.
    xquat: XQUAT[4 nbody],
    /// Returns the positions of the bodies' centers of mass: three numbers a body.
    xipos: XIPOS[3 nbody],
    /// Returns the positions of the geoms: three numbers a geom.
    geom_xpos: GEOM_XPOS[3 ngeom],
    /// Returns the axes of the geoms: a row-major matrix a geom.
    geom_xmat: GEOM_XMAT[9 ngeom],
    /// Returns the positions of the sites: three numbers a site.
    site_xpos: SITE_XPOS[3 nsite],
    /// Returns the positions of the cameras: three numbers a camera.
    cam_xpos: CAM_XPOS[3 ncam],
    /// Returns the axes of the cameras, right, up, backwards: a row-major matrix a camera.
    cam_xmat: CAM_XMAT[9 ncam],
    /// Returns the bodies' inertias about the center of mass: ten numbers a body.
    cinert: CINERT[10 nbody],
    /// Returns the bodies' velocities about the center of mass: six numbers a body.
    cvel: CVEL[6 nbody],
    /// Returns the forces of the actuators on the joints: `nv` numbers.
    qfrc_actuator: QFRC_ACTUATOR[nv],
    /// Returns the forces of the constraints on the joints: `nv` numbers.
    qfrc_constraint: QFRC_CONSTRAINT[nv],
    /// Returns the external forces on the bodies, six numbers a body, which are computed for tasks
    /// whose specification has `cfrc_ext`.
    cfrc_ext: CFRC_EXT[6 nbody],
}

/// Returns `N` numbers from index `at`.
fn fixed<const N: usize>(values: &[f64], at: usize) -> [f64; N] {
    std::array::from_fn(|i| values[at + i])
}

impl MjData<'_> {
    /// Returns the model.
    pub fn model(&self) -> &MjModel {
        self.model
    }

    /// Returns the seconds since the start of the episode.
    pub fn time(&self) -> f64 {
        // SAFETY: the offset is that of `time`, a double inside the struct.
        unsafe { self.data.ptr.byte_add(offset::TIME).cast::<f64>().read() }
    }

    /// Returns the body with this name.
    ///
    /// # Errors
    /// [`Error::Env`] with the names that there are.
    pub fn body(&self, name: &str) -> Result<Body> {
        let id = self.model.body(name)?;
        Ok(Body {
            xpos: fixed(self.xpos(), 3 * id),
            xquat: fixed(self.xquat(), 4 * id),
            cvel: fixed(self.cvel(), 6 * id),
        })
    }

    /// Returns the joint with this name.
    ///
    /// # Errors
    /// [`Error::Env`] with the names that there are.
    pub fn joint(&self, name: &str) -> Result<Joint<'_>> {
        let (qpos, qvel) = self.model.joint(name)?;
        Ok(Joint { qpos: &self.qpos()[qpos], qvel: &self.qvel()[qvel] })
    }

    /// Returns the position in the world of the geom with this name.
    ///
    /// # Errors
    /// [`Error::Env`] with the names that there are.
    pub fn geom(&self, name: &str) -> Result<[f64; 3]> {
        Ok(fixed(self.geom_xpos(), 3 * self.model.geom(name)?))
    }

    /// Returns the position in the world of the site with this name.
    ///
    /// # Errors
    /// [`Error::Env`] with the names that there are.
    pub fn site(&self, name: &str) -> Result<[f64; 3]> {
        Ok(fixed(self.site_xpos(), 3 * self.model.site(name)?))
    }

    /// Returns what the sensor with this name measured.
    ///
    /// # Errors
    /// [`Error::Env`] with the names that there are.
    pub fn sensor(&self, name: &str) -> Result<&[f64]> {
        Ok(&self.sensordata()[self.model.sensor(name)?])
    }

    /// Returns the contacts that the last physics step found.
    pub fn contacts(&self) -> impl Iterator<Item = Contact> {
        // SAFETY: the offsets are those of the number of contacts, an int, and of the pointer to
        // as many of them, which the next step overwrites: it needs `&mut self`.
        let (count, first) = unsafe {
            let count = self.data.ptr.byte_add(offset::NCON).cast::<c_int>().read();
            let first = self.data.ptr.byte_add(offset::CONTACT).cast::<*const u8>().read();
            (count as usize, first)
        };
        (0..count).map(move |i| {
            // SAFETY: one of the contacts, and offsets of fields of these types inside it.
            let (dist, pos, geom) = unsafe {
                let contact = first.add(i * contact::SIZE);
                (
                    contact.add(contact::DIST).cast::<f64>().read(),
                    contact.add(contact::POS).cast::<[f64; 3]>().read(),
                    contact.add(contact::GEOM).cast::<[c_int; 2]>().read(),
                )
            };
            // -1 is an object that is no geom.
            Contact { geom: geom.map(|id| id as usize), pos, dist }
        })
    }

    /// Returns true if the geoms with these names are in contact.
    ///
    /// # Errors
    /// [`Error::Env`] with the names that there are.
    pub fn in_contact(&self, a: &str, b: &str) -> Result<bool> {
        let (a, b) = (self.model.geom(a)?, self.model.geom(b)?);
        Ok(self.contacts().any(|contact| contact.geom == [a, b] || contact.geom == [b, a]))
    }
}

impl MjModel {
    /// Lends `work` a simulation in an arbitrary state, which `work` must set.
    ///
    /// All environments of a model share the few simulations that threads need at once, since an
    /// `mjData` is hundreds of kilobytes and the relevant state is much smaller. After an error the
    /// simulation is dropped.
    pub(super) fn simulate<T>(&self, work: impl FnOnce(&mut MjData<'_>) -> Result<T>) -> Result<T> {
        // The memory of the last one returned is most likely still in a cache.
        let idle = lock(&self.idle).pop();
        let mut simulation = MjData { model: self, data: idle.map_or_else(|| self.data(), Ok)? };
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

impl MjData<'_> {
    /// # Safety
    /// `offset` must be that of a pointer to doubles.
    unsafe fn field(&self, offset: usize) -> *mut f64 {
        // SAFETY: by the caller's promise.
        unsafe { self.data.ptr.byte_add(offset).cast::<*mut f64>().read() }
    }

    fn numbers(&self, offset: usize, len: usize) -> &[f64] {
        if len == 0 {
            return &[];
        }
        // SAFETY: `ptr` is a whole mjData, and the callers name fields of `len` doubles, which live
        // as long as it and change only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.field(offset), len) }
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
        self.write(offset::QPOS, self.model.nq, qpos);
        self.write(offset::QVEL, self.model.nv, qvel);
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
        let ctrl =
            unsafe { std::slice::from_raw_parts_mut(self.field(offset::CTRL), self.model.nu) };
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

    /// Computes [`cfrc_ext`](MjData::cfrc_ext), which a step does not.
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

    /// Restores the state from a [`state`](MjData::state).
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
            let offset = offset::WARNING + 8 * warning;
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
    use std::sync::Arc;

    use super::super::model::gymnasium_model;
    use super::*;

    fn gymnasium(file: &str) -> Arc<MjModel> {
        MjModel::load(&gymnasium_model(file).unwrap()).unwrap()
    }

    #[test]
    fn fields_are_where_the_offsets_say() {
        let model = gymnasium("half_cheetah.xml");
        assert_eq!((model.nq, model.nv, model.nu, model.nbody), (9, 9, 6, 8));
        assert_eq!(model.timestep(), 0.01);
        assert!(model.control_range().eq([[-1.0, 1.0]; 6]));
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
        assert_eq!((model.camera("track"), model.camera("wing")), (Some(0), None));
        assert_eq!(model.cam_fovy(), [45.0]);
        assert!(model.extent() > 1.0 && model.extent() < 200.0, "{}", model.extent());
        let torso = model.body("torso").unwrap();
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
        let error = model.body("wing").unwrap_err().to_string();
        let expected = "the model has no body named \"wing\"; it has world, torso, bthigh, bshin, ";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn a_model_is_loaded_once_and_simulations_are_shared() {
        let (a, b) = (gymnasium("swimmer.xml"), gymnasium("swimmer.xml"));
        assert!(Arc::ptr_eq(&a, &b));
        a.simulate(|_| a.simulate(|_| Ok(()))).unwrap();
        assert_eq!(lock(&a.idle).len(), 2);
        a.simulate(|_| Err::<(), _>(Error::Env("no".into()))).unwrap_err();
        assert_eq!(lock(&a.idle).len(), 1);
    }

    #[test]
    fn a_fatal_error_of_the_library_is_an_error() {
        let model = gymnasium("reacher.xml");
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
}
