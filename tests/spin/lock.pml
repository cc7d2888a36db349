/* lock.pml - the header lock of mpqueue/native/lock.c.
 *
 * step here                     in C
 * TRY: CAS 0 -> mine            mpq_lock_try, take(); its spins are the same CAS again
 * TAKEOVER: load, dead?, CAS    mpq_lock_try, the contended branch; DEAD is mpq_dead
 * SLEEP: load, waiters bit      mpq_lock_sleep
 * token or slice                gate_sleep: the semaphore is a hint; a slice that finds nothing new
 *                               comes back to where it was, so it is no step
 * RELEASE: CAS, CAS, post       mpq_lock_release, gate_post (posts only at zero)
 * join, leave, death            mpq_join, mpq_leave; the kernel frees the byte after the last store
 *
 * Holds: at most one live incarnation is inside (assertion); whoever releases is the owner
 * (assertion); nobody waits for ever (no invalid end state), wherever anybody dies, also a taker
 * over. NO_SLICES: without deaths, wake-ups alone do: the slices are for deaths only.
 *
 * BREAK_TIMEOUT         a living owner that was waited for long enough counts as dead
 * BREAK_PID             liveness is of the process slot, which the next process reuses
 * BREAK_NO_TAKEOVER     nobody asks whether the owner is dead
 * BREAK_TAKEOVER_STORE  the takeover stores instead of comparing
 * BREAK_WAITERS         (NO_SLICES) who takes the lock after a sleep drops the waiters bit */
#ifndef MEMBERS
#define MEMBERS 3
#endif
#define MORTALS MEMBERS
#ifndef INCARNATIONS
#define INCARNATIONS 4
#endif
#ifndef TURNS
#define TURNS 1
#endif
#include "mortal.pml"

byte owner = 0; /* incarnation * 2 + waiters bit */
byte tokens = 0;
byte last = 0; /* incarnation given out last */
bool alive[INCARNATIONS + 1];
byte slot[INCARNATIONS + 1]; /* the process it ran in */
byte tenant[MEMBERS + 1]; /* who runs there now */
byte inside = 0;

#ifdef BREAK_PID
#define DEAD(i) (tenant[slot[i]] == 0)
#else
#define DEAD(i) (!alive[i] && (i) != me)
#endif
#ifdef BREAK_WAITERS
#define MINE (me * 2)
#else
#define MINE (me * 2 + contended)
#endif

inline lock() {
  do
  :: atomic {
       if
       :: owner == 0 -> owner = MINE; got = true
       :: else
       fi
     };
     if
     :: got -> break
     :: !got && contended ->
        now = owner;
        if
#ifdef BREAK_TIMEOUT
        :: now != 0 && now / 2 == seen / 2 ->
#else
#ifdef BREAK_NO_TAKEOVER
        :: false ->
#else
        :: now != 0 && now / 2 == seen / 2 && DEAD(now / 2) ->
#endif
#endif
           atomic {
             if
#ifdef BREAK_TAKEOVER_STORE
             :: owner = me * 2 + 1; got = true
#else
             :: owner == now -> owner = me * 2 + 1; got = true
             :: else
#endif
             fi
           };
           if
           :: got -> break
           :: else
           fi
        :: else
        fi
     :: else
     fi;
     now = owner; contended = true;
     if
     :: now != 0 && now % 2 == 0 ->
        atomic {
          if
          :: owner == now -> owner = now + 1; now = now + 1
          :: else -> now = 0 /* changed meanwhile: try again */
          fi
        }
     :: else
     fi;
     if
     :: now != 0 ->
        seen = now;
        if
        :: atomic { tokens > 0 -> tokens-- }
#ifndef NO_SLICES
        :: owner != seen
#ifndef BREAK_NO_TAKEOVER
        :: DEAD(seen / 2)
#endif
#ifdef BREAK_TIMEOUT
        :: true
#endif
#endif
        fi
     :: else
     fi
  od
}

inline unlock() {
  atomic {
    if
    :: owner == me * 2 -> owner = 0; got = false
    :: else
    fi
  };
  if
  :: got ->
     atomic { assert(owner == me * 2 + 1); owner = 0; got = false };
     if
     :: tokens == 0 -> atomic { tokens < 3 -> tokens++ } /* looked first, posts then */
     :: else
     fi
  :: else
  fi
}

active [MEMBERS] proctype Member() MORTAL {
  byte me, now, seen, turn;
  bool contended, got, over;
  do
  :: over -> break
  :: else ->
     {
       atomic {
         if
         :: last < INCARNATIONS ->
            last++; me = last; alive[me] = true; slot[me] = _pid; tenant[_pid] = me
         :: else -> over = true
         fi
       };
       do
       :: over -> break
       :: !over && turn == TURNS -> break
       :: !over && turn < TURNS ->
          lock();
          atomic { assert(inside == 0 || !alive[inside]); inside = me; now = 0; seen = 0 };
          atomic { assert(inside == me); inside = 0; contended = false };
          unlock();
          turn++
       od;
       atomic { alive[me] = false; tenant[_pid] = 0; over = true } /* leaves */
     } unless { KILLED };
     if
     :: over -> break
     :: else ->
        atomic { BURIED; now = 0; seen = 0; contended = false; got = false; turn = 0 };
        atomic { alive[me] = false; tenant[_pid] = 0; me = 0 }
     fi
  od;
  GONE
}
