#!/usr/bin/env python3
"""Formulas for convolutions on the XLA CPU plugin, timed on the plugin itself.

Needs: jax 0.10 from pip (only to write StableHLO text), numpy, and the shared object of the wheel xla-cpu-pjrt.
    XLA_CPU_PJRT=.../xla_cpu_pjrt.so JAX_PLATFORMS=cpu python benches/conv_formulas.py check layers step scan policy gemm
PJ_MALLOC=0 leaves the allocator of the process as it is (default: the four mallopt settings of the decision note).
Candidates are interleaved; printed are wall time (minimum, median), processor time of all threads, compile time and the
largest deviation from the first candidate relative to its largest value.
"""
import ctypes as C, os, statistics, sys, time
from functools import partial
os.environ.setdefault("JAX_PLATFORMS", "cpu")
import numpy as np, jax, jax.numpy as jnp
from jax import lax
SO = os.environ.get("XLA_CPU_PJRT", "xla_cpu_pjrt.so")
IDX = dict(Error_Destroy=0, Error_Message=1, Plugin_Initialize=3, Event_Destroy=5, Event_Await=8, Client_Create=10,
           AddressableDevices=16, Compile=20, FromHost=22, LE_Destroy=50, GetExecutable=51, Optimized=48, Execute=55,
           Buffer_Destroy=58, ToHost=70)
TY = {'bool': 1, 'int8': 2, 'int32': 4, 'int64': 5, 'uint8': 6, 'uint32': 8, 'float32': 11, 'float64': 12}

def _pb(f, v):  # varint / bytes field
    def vi(n):
        o = b''
        while True:
            b = n & 127; n >>= 7
            o += bytes([b | (128 if n else 0)])
            if not n: return o
    if isinstance(v, int): return vi(f << 3) + vi(v)
    return vi(f << 3 | 2) + vi(len(v)) + v

def options(flags):
    o = _pb(3, _pb(4, 1) + _pb(5, 1))
    for k, v in (flags or {}).items():
        if isinstance(v, bool): m = _pb(2, int(v))
        elif isinstance(v, int): m = _pb(3, v)
        else: m = _pb(1, v.encode())
        o += _pb(7, _pb(1, k.encode()) + _pb(2, m))
    return o

def tune_malloc(which="1"):
    m = C.CDLL(None).mallopt
    o = dict(arena=(-8, 1), mmap=(-4, 0), trim=(-1, 2**31 - 1), pad=(-2, 2**28), thr=(-3, 32 << 20))
    for k in (["arena", "mmap", "trim", "pad"] if which == "1" else which.split(",")): assert m(*o[k]) == 1, k

class Plugin:
    def __init__(self):
        if os.environ.get("PJ_MALLOC", "1") != "0": tune_malloc(os.environ.get("PJ_MALLOC", "1"))
        lib = C.CDLL(SO); lib.GetPjrtApi.restype = C.c_void_p
        self.api = lib.GetPjrtApi()
        self.fn = {}
        for n, i in IDX.items():
            p = C.cast(self.api + 40 + 8 * i, C.POINTER(C.c_void_p))[0]
            self.fn[n] = C.CFUNCTYPE(C.c_void_p, C.c_void_p)(p)
        self.call('Plugin_Initialize', [])
        self.client = self.call('Client_Create', [0] * 9)[6]
        a = self.call('AddressableDevices', [self.client, 0, 0])
        self.dev = C.cast(a[1], C.POINTER(C.c_void_p))[0]
    def raw(self, name, vals):
        a = (C.c_uint64 * (len(vals) + 2))(8 * (len(vals) + 2), 0, *[v or 0 for v in vals])
        e = self.fn[name](C.addressof(a))
        return a, e
    def call(self, name, vals):
        a, e = self.raw(name, vals)
        if e:
            m, _ = self.raw('Error_Message', [e, 0, 0])
            s = C.string_at(m[3], m[4]).decode(); self.raw('Error_Destroy', [e])
            raise RuntimeError(name + ': ' + s[:1500])
        return list(a)[2:]
    def wait(self, ev):
        self.call('Event_Await', [ev]); self.call('Event_Destroy', [ev])
    def compile(self, text, flags=None):
        t = text.encode(); o = options(flags)
        tb = C.create_string_buffer(t, len(t)); ob = C.create_string_buffer(o, len(o)); fb = C.create_string_buffer(b"mlir")
        prog = (C.c_uint64 * 6)(48, 0, C.addressof(tb), len(t), C.addressof(fb), 4)
        return self.call('Compile', [self.client, C.addressof(prog), C.addressof(ob), len(o), 0])[4]
    def put(self, x):
        x = np.ascontiguousarray(x); dims = (C.c_int64 * max(1, x.ndim))(*x.shape)
        r = self.call('FromHost', [self.client, x.ctypes.data, TY[str(x.dtype)], C.addressof(dims), x.ndim, 0, 0, 0, self.dev, 0, 0, 0, 0])
        self.wait(r[11]); return r[12]
    def execute(self, exe, args, nout):
        opt = (C.c_uint64 * 14)(112); ain = (C.c_uint64 * max(1, len(args)))(*args); ap = (C.c_uint64 * 1)(C.addressof(ain))
        out = (C.c_uint64 * nout)(); op = (C.c_uint64 * 1)(C.addressof(out)); ev = (C.c_uint64 * 1)()
        self.call('Execute', [exe, C.addressof(opt), C.addressof(ap), 1, len(args), C.addressof(op), C.addressof(ev), 0])
        self.wait(ev[0]); return list(out)
    def free(self, bufs):
        for b in bufs: self.call('Buffer_Destroy', [b])
    def get(self, buf, shape, dtype):
        o = np.empty(shape, dtype)
        r = self.call('ToHost', [buf, 0, o.ctypes.data, o.nbytes, 0]); self.wait(r[4]); return o

P = None
def plugin():
    global P
    if P is None: P = Plugin()
    return P

class Prog:
    def __init__(self, fn, *args, flags=None, text=None):
        import jax
        p = plugin(); self.args = args
        self.text = text or jax.jit(fn, keep_unused=True).lower(*args).as_text()
        self.out = jax.tree.leaves(jax.eval_shape(fn, *args))
        t = time.perf_counter(); self.exe = p.compile(self.text, flags); self.tc = time.perf_counter() - t
        self.bufs = [p.put(np.asarray(a)) for a in jax.tree.leaves(args)]
        self.t = []; self.c = []
    def step(self):
        p = plugin(); c = time.process_time(); t = time.perf_counter(); o = p.execute(self.exe, self.bufs, len(self.out))
        self.t.append((time.perf_counter() - t) * 1e3); self.c.append((time.process_time() - c) * 1e3); p.free(o)
    def value(self):
        p = plugin(); o = p.execute(self.exe, self.bufs, len(self.out))
        r = [p.get(b, s.shape, s.dtype) for b, s in zip(o, self.out)]; p.free(o); return r
    def close(self):
        p = plugin(); p.free(self.bufs); p.call('LE_Destroy', [self.exe])

def bench(cands, reps=8, ref=None, flags=None, limit=1500, tol=True):
    """cands: name -> (fn, args). ref: name of the reference candidate. Interleaved."""
    progs = {}
    for n, c in cands.items():
        try: progs[n] = Prog(c[0], *c[1], flags=(c[2] if len(c) > 2 else flags))
        except Exception as e: print(f"{n:44s} FAIL {str(e)[:300]}", flush=True)
    err = {}
    if ref:
        rv = ref if isinstance(ref, list) else progs[ref].value()
        for n, q in progs.items():
            err[n] = max(float(np.max(np.abs(a - b)) / (np.max(np.abs(b)) + 1e-30)) for a, b in zip(q.value(), rv))
    for q in progs.values(): q.step(); q.t.clear(); q.c.clear()
    for r in range(reps):
        for q in progs.values():
            if r and sum(q.t) > limit: continue
            q.step()
    for n, q in progs.items():
        print(f"{n:44s} min {min(q.t):8.2f} med {statistics.median(q.t):8.2f} ms  cpu {min(q.c):7.1f}/{statistics.median(q.c):7.1f}  compile {q.tc:5.2f}s  err {err.get(n, float('nan')):.1e}", flush=True)
        q.close()
    return {n: min(q.t) for n, q in progs.items()}


# ---------------------------------------------------------------- formulas (x NHWC, w HWIO, y NHWC)
DN = ("NHWC", "HWIO", "NHWC")
CHUNK = 32      # images per product of dW
MAX_CHUNKS = 16

def fwd(x, w, s, pad=((0, 0), (0, 0)), dil=(1, 1)):
    return lax.conv_general_dilated(x, w, s, pad, rhs_dilation=dil, dimension_numbers=DN)

def dw(x, g, k, s, pad=((0, 0), (0, 0)), dil=(1, 1), chunk=None):
    """Canonical convolutions over chunks of the batch: image [C,H,W,b], kernel [Ho,Wo,b,O], result [C,kh,kw,O]."""
    B = x.shape[0]; b = chunk or max(CHUNK, -(-B // MAX_CHUNKS)); acc = None
    for i in range(0, B, b):
        p = lax.conv_general_dilated(x[i:i + b].transpose(3, 1, 2, 0), g[i:i + b].transpose(1, 2, 0, 3), dil, pad,
                                     rhs_dilation=s, dimension_numbers=DN)[:, :k[0], :k[1]]
        acc = p if acc is None else acc + p
    return acc.transpose(1, 2, 0, 3)

def dx(w, g, hw, s, pad=((0, 0), (0, 0)), dil=(1, 1)):
    """Stride 1 convolution with the reversed kernel of the space-to-depth form, then depth to space."""
    kh, kw, Ci, O = w.shape; B, Ho, Wo, _ = g.shape
    if dil != (1, 1):   # general form: dilate dY (canonical, so as fast in loops, but s*s times the work)
        if s != (1, 1): lo = s
        else: lo = (1, 1)
        q = [((k - 1) * d - p[0], h + p[0] - 1 - (o - 1) * t) for k, d, p, h, o, t in zip((kh, kw), dil, pad, hw, (Ho, Wo), s)]
        return lax.conv_general_dilated(g, w[::-1, ::-1].transpose(0, 1, 3, 2), (1, 1), q, lhs_dilation=lo, rhs_dilation=dil, dimension_numbers=DN)
    qh, qw = -(-kh // s[0]), -(-kw // s[1])
    w = jnp.pad(w, ((0, qh * s[0] - kh), (0, qw * s[1] - kw), (0, 0), (0, 0)))
    w2 = w.reshape(qh, s[0], qw, s[1], Ci, O)[::-1, :, ::-1].transpose(0, 2, 5, 1, 3, 4).reshape(qh, qw, O, s[0] * s[1] * Ci)
    y = lax.conv_general_dilated(g, w2, (1, 1), ((qh - 1, qh - 1), (qw - 1, qw - 1)), dimension_numbers=DN)
    H2, W2 = Ho + qh - 1, Wo + qw - 1
    y = y.reshape(B, H2, W2, s[0], s[1], Ci).transpose(0, 1, 3, 2, 4, 5).reshape(B, H2 * s[0], W2 * s[1], Ci)
    cfg = [(0, 0, 0)] + [(-p[0], h + p[0] - n, 0) for p, h, n in zip(pad, hw, (H2 * s[0], W2 * s[1]))] + [(0, 0, 0)]
    return lax.pad(y, jnp.float32(0), cfg)

@partial(jax.custom_vjp, nondiff_argnums=(2,))
def conv_new(x, w, s): return fwd(x, w, (s, s))
conv_new.defvjp(lambda x, w, s: (fwd(x, w, (s, s)), (x, w)),
                lambda s, r, g: (dx(r[1], g, r[0].shape[1:3], (s, s)), dw(r[0], g, r[1].shape[:2], (s, s))))
def conv_plain(x, w, s): return fwd(x, w, (s, s))

@jax.custom_vjp
def bias(h, b): return h + b
bias.defvjp(lambda h, b: (h + b, None),   # two sums: over the batch first, then over the positions
            lambda _, g: (g, lax.optimization_barrier(g.reshape(g.shape[0], -1).sum(0)).reshape(-1, g.shape[-1]).sum(0)))

# ---------------------------------------------------------------- the PPO-Atari minibatch step
LAYERS = {"conv1": (84, 4, 32, 8, 4), "conv2": (20, 32, 64, 4, 2), "conv3": (9, 64, 64, 3, 1)}
rng = np.random.default_rng(0)
def A(*s): return rng.standard_normal(s, dtype=np.float32)
def make(convs, two_step=False):
    def net(p,obs):
        h=obs.transpose(0,2,3,1).astype(jnp.float32)*(1/255.)
        for i,(n,(H,C,O,k,s)) in enumerate(LAYERS.items()):
            h=jax.nn.relu((bias if two_step else jnp.add)(convs[i](h,p[f'w{i}'],s),p[f'b{i}']))
        h=h.reshape(h.shape[0],-1)
        h=jax.nn.relu(h@p['wd']+p['bd'])
        return h@p['wa']+p['ba'], (h@p['wv']+p['bv'])[:,0]
    def loss(p,obs,a,lp,adv,ret,val):
        lg,v=net(p,obs); lsm=jax.nn.log_softmax(lg)
        nl=jnp.take_along_axis(lsm,a[:,None],1)[:,0]; ent=-(jnp.exp(lsm)*lsm).sum(1).mean()
        ratio=jnp.exp(nl-lp); adv=(adv-adv.mean())/(adv.std()+1e-8)
        pg=jnp.maximum(-adv*ratio,-adv*jnp.clip(ratio,.9,1.1)).mean()
        vc=val+jnp.clip(v-val,-.1,.1); vl=.5*jnp.maximum((v-ret)**2,(vc-ret)**2).mean()
        return pg-.01*ent+.5*vl
    def step(p,m,v,t,obs,a,lp,adv,ret,val):
        l,g=jax.value_and_grad(loss)(p,obs,a,lp,adv,ret,val)
        n=jnp.sqrt(sum((x*x).sum() for x in jax.tree.leaves(g))); sc=jnp.minimum(1.,.5/(n+1e-6)); t=t+1
        g=jax.tree.map(lambda x:x*sc,g)
        m=jax.tree.map(lambda m,g:.9*m+.1*g,m,g); v=jax.tree.map(lambda v,g:.999*v+.001*g*g,v,g)
        c1=1-.9**t; c2=1-.999**t
        p=jax.tree.map(lambda p,m,v:p-2.5e-4*(m/c1)/(jnp.sqrt(v/c2)+1e-5),p,m,v)
        return l,n,p,m,v,t
    return net,loss,step
def params():
    r=np.random.default_rng(1); p={}
    for i,(H,C,O,k,s) in enumerate(LAYERS.values()):
        p[f'w{i}']=(r.standard_normal((k,k,C,O))*(2/(k*k*C))**.5).astype(np.float32); p[f'b{i}']=np.zeros(O,np.float32)
    for n,a,b,sc in (('d',3136,512,(2/3136)**.5),('a',512,6,.01),('v',512,1,.04)):
        p['w'+n]=(r.standard_normal((a,b))*sc).astype(np.float32); p['b'+n]=np.zeros(b,np.float32)
    return p
def data(B=256):
    r=np.random.default_rng(2); f=lambda:r.standard_normal(B).astype(np.float32)
    return (r.integers(0,256,(B,4,84,84)).astype(np.uint8),r.integers(0,6,B).astype(np.int32),(-1.8+.05*f()).astype(np.float32),f(),f(),f())
def args():
    p=params(); z=jax.tree.map(np.zeros_like,p); return (p,z,jax.tree.map(np.zeros_like,p),np.float32(0))+data()

def jdw(x, g, k, s, pad=((0, 0), (0, 0)), dil=(1, 1)):
    return jax.vjp(lambda w: fwd(x, w, s, pad, dil), jnp.zeros(k + (x.shape[3], g.shape[3])))[1](g)[0]
def jdx(w, g, hw, s, pad=((0, 0), (0, 0)), dil=(1, 1)):
    return jax.vjp(lambda x: fwd(x, w, s, pad, dil), jnp.zeros((g.shape[0],) + tuple(hw) + (w.shape[2],)))[1](g)[0]
def loop(f, n):   # f repeated in a while
    return lambda x, *r: lax.fori_loop(0, n, lambda i, c: (c[0] + 0 * c[1] * 1e-30, jnp.sum(f(c[0], *r))), (x, jnp.float32(0)))[1]

def main(which):
    plugin()   # fails here when the shared object is not found
    if "check" in which:
        worst = 0
        for B, H, W, ci, co, k, s, pad, dil in [(5, 20, 20, 3, 8, (4, 4), (2, 2), ((0, 0), (0, 0)), (1, 1)), (40, 21, 19, 4, 8, (3, 5), (2, 3), ((1, 2), (0, 1)), (1, 1)),
                (33, 9, 9, 4, 6, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)), (3, 17, 18, 2, 5, (3, 2), (1, 1), ((2, 0), (1, 3)), (2, 3)), (3, 17, 18, 2, 5, (3, 2), (2, 2), ((2, 0), (1, 3)), (2, 1)),
                (2, 12, 12, 3, 4, (1, 1), (3, 3), ((0, 0), (0, 0)), (1, 1)), (2, 23, 22, 3, 4, (8, 8), (4, 4), ((0, 0), (0, 0)), (1, 1))]:
            x, w = A(B, H, W, ci), A(*k, ci, co); g = A(*jax.eval_shape(lambda x, w: fwd(x, w, s, pad, dil), x, w).shape)
            for a, b in ((Prog(lambda x, g: dw(x, g, k, s, pad, dil), x, g), jdw(x, g, k, s, pad, dil)), (Prog(lambda w, g: dx(w, g, (H, W), s, pad, dil), w, g), jdx(w, g, (H, W), s, pad, dil))):
                worst = max(worst, float(np.abs(a.value()[0] - b).max() / np.abs(b).max()))
        print("worst relative deviation of dW, dX from jax:", worst); assert worst < 1e-5
    if "gemm" in which: bench({"gemm 1024": (lambda a, b: a @ b, (A(1024, 1024), A(1024, 1024)))}, reps=20)
    if "layers" in which:
        for n, (H, ci, co, k, s) in LAYERS.items():
            o = (H - k) // s + 1; x, w, g = A(256, H, H, ci), A(k, k, ci, co), A(256, o, o, co); K, S = (k, k), (s, s)
            c = {n + " dW jax": (lambda x, g: jdw(x, g, K, S), (x, g))}
            for b in (256, 64, 32, 16): c[f"{n} dW chunks of {b}"] = (lambda x, g, b=b: dw(x, g, K, S, chunk=b), (x, g))
            bench(c, ref=n + " dW jax")
            bench({n + " dX jax": (lambda w, g: jdx(w, g, (H, H), S), (w, g)), n + " dX new": (lambda w, g: dx(w, g, (H, H), S), (w, g))}, ref=n + " dX jax")
            bench({n + " fwd": (lambda x, w: fwd(x, w, S), (x, w))})
    if "loops" in which:
        H, ci, co, k, s = LAYERS["conv2"]; x, w, g = A(64, H, H, ci), A(k, k, ci, co), A(64, 9, 9, co); K, S = (k, k), (s, s)
        bench({"while x4 dW jax": (loop(lambda x, g: jdw(x, g, K, S), 4), (x, g)), "while x4 dW new": (loop(lambda x, g: dw(x, g, K, S), 4), (x, g)),
               "while x4 dX jax": (loop(lambda g, w: jdx(w, g, (H, H), S), 4), (g, w)), "while x4 dX new": (loop(lambda g, w: dx(w, g, (H, H), S), 4), (g, w))}, reps=4)
    a = args(); old, new = make([conv_plain] * 3), make([conv_new] * 3, True)
    if "step" in which:
        gr = lambda m: (lambda p, *d: jax.grad(m[1])(p, *d), (a[0],) + a[4:])
        bench({"gradients plain": gr(old), "gradients new": gr(new)}, ref="gradients plain")
        bench({"step plain": (old[2], a), "step new convolutions": (make([conv_new] * 3)[2], a), "step new, bias in two sums": (new[2], a)}, reps=15, limit=4000)
    if "scan" in which:
        big = [np.concatenate([d] * 4) for d in a[4:]]
        def epoch(p, m, v, t, *d):
            def body(c, x):
                l, n, p, m, v, t = new[2](*c, *x); return (p, m, v, t), l
            return lax.scan(body, (p, m, v, t), tuple(x.reshape((4, 256) + x.shape[1:]) for x in d))
        bench({"scan of 4 steps": (epoch, a[:4] + tuple(big))}, reps=6, limit=6000)
    if "policy" in which: bench({"policy, 8 observations": (old[0], (a[0], a[4][:8]))}, reps=60)

if __name__ == "__main__": main(sys.argv[1:] or ["check", "gemm", "layers", "loops", "step", "scan", "policy"])
