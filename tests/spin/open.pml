/* open.pml - making, opening and joining a queue; recovery by one; a forked child's late join.
 *
 * step here                       in C (mpqueue/native)
 * make meta aside, link it        mpq_meta_create (meta.c): the first link wins
 * gate, range, recover or join    mpq_attach (open.c): both are kernel locks, so a death frees them
 * sweep, rebuild, rename          mpq_recover, mpq_rebuild, mpq_control_make
 * trust                           trust (recover.c): in place, idempotent
 * map by name                     join_living, mpq_control_map
 * incarnation, byte, gate freed   mpq_join, mpq_pin_drop
 * fork; the child's first call    mpq_rejoin, same_control (member.c)
 *
 * A file is a number; `whole` says that its making has ended. Whether an opener that is alone
 * trusts control or makes it anew is anybody's choice when the file is whole.
 *
 * Holds (assertions): one process recovers, and only while nobody is a member; whoever is a member
 * has the control mapped that the directory names, and it is whole; opening fails for no reason
 * but a rebuild under a child that had not joined. Nobody waits for ever.
 *
 * BREAK_NO_GATE    openers try the range and join without the gate
 * BREAK_GATE_EARLY the gate is given back before the joiner holds its byte
 * BREAK_NAME_FIRST control gets its name before it is whole
 * BREAK_BLIND_JOIN a forked child joins what it has mapped, whatever the directory names
 * BREAK_SWEPT      a link that fails because an opener swept the file is an error */
#ifndef OPENERS
#define OPENERS 3
#endif
#define MORTALS OPENERS
#define FILES 7
#include "mortal.pml"

bool meta = false;
byte aside = 0; /* a bit for each process whose new meta has a name of its own */
byte control = 0, fresh = 0; /* files named control and control-new */
byte files = 0;
bool whole[FILES + 1];
byte gate = 0, range = 0; /* holders */
byte members = 0; /* a bit for each process whose byte is held */
byte recoverer = 0;
byte orphan = 0; /* control that a forked child has mapped and not joined */
bool forked = false;

inline name_meta() {
  if
  :: !meta ->
     aside = aside | (1 << _pid);
     atomic {
       if
       :: meta /* exists: the winner's is opened */
       :: !meta && (aside & (1 << _pid)) -> meta = true
       :: !meta && !(aside & (1 << _pid)) -> assert(false)
#ifdef BREAK_SWEPT
       :: meta && !(aside & (1 << _pid)) -> assert(false)
#endif
       fi;
       aside = aside & ~(1 << _pid)
     }
  :: meta
  fi
}

inline recover() {
  atomic { assert(members == 0 && recoverer == 0); recoverer = _pid };
  aside = 0; /* the sweep */
  if
#ifdef BREAK_NAME_FIRST
  :: control != 0 -> mapped = control /* as if it proved itself */
#else
  :: control != 0 && whole[control] -> mapped = control /* trust */
#endif
  :: files < FILES ->
     fresh = 0; /* what a killed one left goes first */
     atomic { files++; fresh = files; mapped = files };
#ifdef BREAK_NAME_FIRST
     control = fresh;
     whole[mapped] = true;
#else
     whole[mapped] = true;
     atomic { assert(fresh == mapped); control = fresh; fresh = 0 }
#endif
  fi;
  recoverer = 0
}

inline attach() {
#ifndef BREAK_NO_GATE
  atomic { gate == 0 -> gate = _pid };
#endif
  if
  :: atomic { range == 0 && members == 0 -> range = _pid };
     recover();
     range = 0
  :: range != 0 || members != 0 ->
     mapped = control;
     assert(mapped != 0 && whole[mapped])
  fi;
#ifdef BREAK_GATE_EARLY
  gate = 0;
#endif
  atomic { range == 0 -> members = members | (1 << _pid) };
#ifndef BREAK_NO_GATE
#ifndef BREAK_GATE_EARLY
  gate = 0
#endif
#endif
}

inline use() {
  atomic { assert(mapped == control && whole[mapped] && recoverer == 0) }
}

active [OPENERS] proctype Opener() MORTAL {
  byte mapped;
  bool over;
  do
  :: over -> break
  :: else ->
     {
       if
       :: atomic { orphan != 0 && !(members & (1 << _pid)) -> mapped = orphan; orphan = 0 };
          atomic { gate == 0 -> gate = _pid };
#ifndef BREAK_BLIND_JOIN
          if
          :: mapped != control -> gate = 0; mapped = 0; goto out /* told to open again */
          :: else
          fi;
#endif
          members = members | (1 << _pid);
          gate = 0
       :: true ->
          name_meta();
          attach()
       fi;
       use();
       if
       :: atomic { !forked -> forked = true; orphan = mapped } /* a child that does nothing yet */
       :: true
       fi;
       use();
       members = members & ~(1 << _pid);
out:   over = true
     } unless { KILLED };
     if
     :: over -> break
     :: else ->
        atomic { BURIED; mapped = 0 };
        atomic {
          members = members & ~(1 << _pid);
          if
          :: gate == _pid -> gate = 0
          :: else
          fi;
          if
          :: range == _pid -> range = 0
          :: else
          fi;
          if
          :: recoverer == _pid -> recoverer = 0
          :: else
          fi
        }
     fi
  od;
  GONE
}
