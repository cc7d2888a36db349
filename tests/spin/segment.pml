/* segment.pml - segments prepared ahead by rivals, recycled, reclaimed.
 *
 * step here                         in C (mpqueue/native)
 * take the ring entry               take_entry (segment.c); a dead preparer's is taken over
 * out of patience                   mpq_segment_prepare: build() without owning the entry
 * a kept file, by CAS and rename    take_kept
 * or a new one                      make_file
 * header, link, look, directory     name_file: the first link wins
 * own name gone, PREPARED           build
 * roll                              place, roll (claim.c) under the header lock: one step
 * free the oldest                   free_segment, reclaim_inside (reclaim.c): kept or unlinked
 *
 * IMPATIENT: a preparer that lives may be passed over at any time.
 *
 * Files are numbers; `label` is the generation in a file's header, `synced` that it is durable.
 *
 * Holds (assertions): who enters a segment finds its name, bound to a file with its header, both
 * durable; no file is taken for reuse while its generation is live; a name is bound once. Every
 * producer gets to the last generation, whoever dies where (no invalid end state).
 *
 * BREAK_NO_TAKEOVER    the entry of a dead preparer stays his
 * BREAK_PREPARED_FIRST PREPARED before the file has its name
 * BREAK_RENAME         the new file replaces what has the name
 * BREAK_KEPT_LOAD      a kept entry is taken without comparing
 * BREAK_EARLY_RECLAIM  the oldest is freed while it is the tail's */
#define MORTALS 3
#define PREPARERS 2
#define RECLAIMER 3
#ifndef LASTGEN
#define LASTGEN 3
#endif
#define FILES 6
#ifndef INCARNATIONS
#define INCARNATIONS 3
#endif
#include "mortal.pml"

#define EMPTY 0
#define PREPARING 1
#define PREPARED 2
#define KEPT 3
#define CODE(g) (ring[g] & 3)
#define BY(g) (ring[g] >> 2)

byte last = 0;
bool alive[INCARNATIONS + 1];
byte ring[LASTGEN + 2];
byte name[LASTGEN + 2]; /* file, 0 = none */
byte label[FILES + 1];
bool synced[FILES + 1];
bool durable[LASTGEN + 2]; /* the directory was synced after the link */
byte files = 1, tail = 1, oldest = 1;
bool kept = false; /* one file at most */
bool begun = false; /* generation 1 is there */

inline build() {
  file = 0; i = oldest;
  do
  :: i > 1 && file == 0 ->
     i--;
     seen = ring[i];
     if
     :: (seen & 3) == KEPT ->
        atomic {
          if
#ifdef BREAK_KEPT_LOAD
          :: true -> won = true; ring[i] = EMPTY; kept = false
#else
          :: ring[i] == seen -> won = true; ring[i] = EMPTY; kept = false
          :: else
#endif
          fi
        };
        if
        :: won ->
           atomic { /* rename */
             file = name[i]; name[i] = 0; won = false;
             assert(file == 0 || i < tail); /* nothing of it is live */
#ifdef BREAK_KEPT_LOAD
             if
             :: file == 0 -> assert(false)
             :: else
             fi
#endif
           }
        :: else
        fi
     :: else
     fi
  :: else -> break
  od;
  i = 0; seen = 0;
  if
  :: file == 0 -> atomic { files < FILES -> files++; file = files }
  :: else
  fi;
#ifdef BREAK_PREPARED_FIRST
  ring[next] = me << 2 | PREPARED;
#endif
  atomic { label[file] = next; synced[file] = true }; /* nobody else has it yet */
  atomic {
    if
#ifdef BREAK_RENAME
    :: true -> assert(name[next] == 0 || tail < next); name[next] = file
#else
    :: name[next] == 0 -> name[next] = file
    :: else
#endif
    fi
  };
  durable[next] = true;
  file = 0;
  do
  :: CODE(next) == PREPARED -> break
  :: else ->
     seen = ring[next];
     atomic {
       if
       :: ring[next] == seen && (seen & 3) != PREPARED -> ring[next] = me << 2 | PREPARED; break
       :: else
       fi
     }
  od;
  seen = 0
}

active [PREPARERS] proctype Producer() MORTAL {
  byte me, next, file, seen, i;
  bool owned, won, over;
  do
  :: over -> break
  :: else ->
     {
       atomic {
         if
         :: last < INCARNATIONS ->
            last++; me = last; alive[me] = true;
            if
            :: !begun -> begun = true; name[1] = 1; label[1] = 1
            :: else
            fi
         :: else -> goto out
         fi
       };
       do
       :: tail == LASTGEN -> break
       :: atomic { tail < LASTGEN && CODE(tail + 1) == PREPARED -> /* roll, under the lock */
            next = tail + 1;
            assert(name[next] != 0 && label[name[next]] == next && synced[name[next]]);
            assert(durable[next]);
            tail = next; next = 0
          }
       :: tail < LASTGEN && CODE(tail + 1) != PREPARED ->
          next = tail + 1;
          if
          :: next > LASTGEN -> next = 0
          :: else ->
             seen = ring[next];
             if
             :: (seen & 3) == PREPARED
#ifdef BREAK_NO_TAKEOVER
             :: (seen & 3) == PREPARING
#else
             :: (seen & 3) == PREPARING && alive[seen >> 2]
             :: (seen & 3) == PREPARING && !alive[seen >> 2] ->
                atomic {
                  if
                  :: ring[next] == seen -> ring[next] = me << 2 | PREPARING; owned = true
                  :: else
                  fi
                }
#endif
             :: (seen & 3) == EMPTY ->
                atomic {
                  if
                  :: ring[next] == seen -> ring[next] = me << 2 | PREPARING; owned = true
                  :: else
                  fi
                }
             :: (seen & 3) == KEPT
             fi;
             if
             :: owned -> build()
#ifdef IMPATIENT
             :: !owned && CODE(next) == PREPARING && files < FILES -> build() /* patience ends */
#endif
             :: !owned && CODE(next) != PREPARING
             :: !owned && CODE(next) == PREPARING && ring[next] != seen
#ifndef BREAK_NO_TAKEOVER
             :: !owned && CODE(next) == PREPARING && !alive[BY(next)]
#endif
             fi;
             atomic { owned = false; seen = 0; next = 0 }
          fi
       od;
       alive[me] = false;
out:   over = true
     } unless { KILLED };
     if
     :: over -> break
     :: else ->
        atomic { BURIED; next = 0; file = 0; seen = 0; i = 0; owned = false; won = false };
        atomic { alive[me] = false; me = 0 }
     fi
  od;
  GONE
}

active proctype Reclaimer() MORTAL {
  bool over, keep;
  do
  :: over -> break
  :: else ->
     {
       do
#ifdef BREAK_EARLY_RECLAIM
       :: begun && oldest <= tail && oldest < LASTGEN ->
#else
       :: oldest < tail ->
#endif
          if
          :: atomic { !kept -> keep = true }
          :: keep = false
          fi;
          if
          :: keep -> atomic { ring[oldest] = KEPT; kept = true }
          :: else ->
             name[oldest] = 0;
             ring[oldest] = EMPTY
          fi;
          oldest++
       :: tail == LASTGEN && oldest == tail -> break
       :: (gone & 6) == 6 -> break
       od;
       over = true
     } unless { KILLED };
     if
     :: over -> break
     :: else -> atomic { BURIED; keep = false }
     fi
  od;
  GONE
}
