/* flush.pml - the act of flushing, tickets, leadership, the durable watermark, poison.
 *
 * step here                        in C (mpqueue/native)
 * claim, publish                   claim.c; claim.pml proves them, so they are one step each
 * ticket                           mpq_flush_ticket: started + 1, after the publication
 * wait                             wait_ticket: done, poison, lead, else by crowd or pair
 * lead, lead_flush                 CAS of flush_owner: 0 or a dead one -> me, me -> 0
 * FLUSH: number                    flush_locked: fetch_add of flush_started
 *        snapshot                  take_snapshot: watermark, tail, settled prefix; frames settle
 *                                  once, so a walk in one step finds what one in many may find
 *        msync begins, ends        write_out; write_segment re-dirties once per mapping
 *        done, watermark           mpq_raise_to of flush_done, then of durable_position
 *        poison                    mpq_poison after msync has returned
 * consumer below the watermark     step_frame (reserve.c) with mpq_visible_limit
 * consumer at the watermark        settle_head, clear_the_way (watch.c)
 *
 * Pair or crowd is an estimate from racing stores, so here it is anybody's choice each time.
 * `disk` has a bit for each frame whose terminal state a finished msync covered; nothing else
 * counts. EIO: one msync may fail; the kernel drops its pages and tells each open file description
 * of that time once, a later one nothing.
 *
 * Holds (assertions): a put that returned is on the disk; what lies below the watermark is settled
 * and on the disk; what is handed out is on the disk. Nobody waits for ever (invalid end state):
 * leader, follower and pusher may die at any step, a leader may also stop for ever (STOPS).
 *
 * BREAK_NUMBER_LATE     the number is taken after the snapshot
 * BREAK_TICKET_EARLY    the ticket is read before the publication
 * BREAK_DONE_FIRST      done is raised before msync
 * BREAK_WATERMARK_STORE the watermark is stored, not raised
 * BREAK_WATERMARK_LATE  the settled prefix is looked up after msync
 * BREAK_OWN_PAGES       a flush writes its own frame only
 * BREAK_NO_SUCCESSOR    a dead leader is not replaced, and nobody loses patience
 * BREAK_NO_PATIENCE     (STOPS) followers wait for a living leader for ever
 * BREAK_NO_CONSUMER     the consumer does not flush for the dead
 * BREAK_NO_REDIRTY      (EIO) the first flush through a new mapping trusts the page cache
 * BREAK_LATCH_FIRST_OK  (EIO) done is raised although msync failed */
#ifndef MORTALS
#define MORTALS 3 /* 2: the consumer lives on */
#endif
#define PUSHERS 2
#ifndef INCARNATIONS
#define INCARNATIONS 3
#endif
#define FRAMES INCARNATIONS
#include "mortal.pml"

#define CLAIMED 1
#define READY 2
#define GAP 3
#define CODE(i) (state[i] & 3)
#define BY(i) (state[i] >> 2)
#define SETTLED(i) (CODE(i) >= READY)
#ifdef BREAK_NO_SUCCESSOR
#define VACANT(i) ((i) == 0)
#else
#define VACANT(i) ((i) == 0 || !alive[i])
#endif
#ifdef ORPHANS /* the consumer flushes at once for the dead, for the living only out of patience */
#define ORPHAN(i) (CODE(i) == GAP || !alive[BY(i)])
#else
#define ORPHAN(i) true
#endif
#define BIT(i) (1 << (i))

byte last = 0;
bool alive[INCARNATIONS + 1];
byte state[FRAMES + 1];
byte tail = 0, watermark = 0, started = 0, done = 0, leader = 0;
byte disk = 0, head = 0;
byte stopped = 0; /* incarnation that stands still for ever */
bool poison = false, consumed = false;
#ifdef EIO
bool failed = false; /* the one write-back has failed */
byte dropped = 0; /* frames whose page it took with it */
bool told[4];
#endif

inline flush(own) {
  atomic {
    error = poison;
    if
    :: !error ->
#ifndef BREAK_NUMBER_LATE
       started++; number = started
#endif
    :: else
    fi
  };
  if
  :: error
  :: !error ->
#ifdef STOPS
     if
     :: atomic { stopped == 0 && me != 0 -> stopped = me }; goto halt
     :: true
     fi;
#endif
     atomic {
       from = watermark; to = tail; prefix = from;
       do
       :: prefix < to && SETTLED(prefix) -> prefix++
       :: else -> break
       od
     };
#ifdef BREAK_DONE_FIRST
     atomic { done = (number > done -> number : done) };
#endif
     atomic { /* msync begins: it writes what is stored by now */
       i = from; covered = 0;
       do
       :: i < to ->
          if
#ifdef BREAK_OWN_PAGES
          :: i == own && SETTLED(i) -> covered = covered | BIT(i)
#else
          :: SETTLED(i) -> covered = covered | BIT(i)
#endif
          :: else
          fi;
#ifdef EIO
#ifndef BREAK_NO_REDIRTY
          if
          :: fresh -> dropped = dropped & ~BIT(i)
          :: else
          fi;
#endif
#endif
          i++
       :: else -> break
       od;
       i = 0; from = 0
     };
#ifdef BREAK_NUMBER_LATE
     atomic { started++; number = started };
#endif
     atomic { /* msync ends */
#ifdef EIO
       if
       :: !failed && (covered & ~disk) != 0 ->
          failed = true; dropped = dropped | (covered & ~disk)
       :: true -> disk = disk | (covered & ~dropped)
       fi;
       error = (told[_pid] != failed); told[_pid] = failed;
#else
       disk = disk | covered;
#endif
       covered = 0
     };
#ifdef BREAK_WATERMARK_LATE
     atomic {
       do
       :: prefix < to && SETTLED(prefix) -> prefix++
       :: else -> break
       od
     };
#endif
     if
     :: error ->
#ifdef BREAK_LATCH_FIRST_OK
        atomic { done = (number > done -> number : done) };
#endif
        poison = true
     :: !error ->
        atomic { done = (number > done -> number : done) };
#ifdef BREAK_WATERMARK_STORE
        watermark = prefix;
#else
        atomic { watermark = (prefix > watermark -> prefix : watermark) };
#endif
#ifdef EIO
        fresh = false
#endif
     fi
  fi;
  atomic { number = 0; from = 0; to = 0; prefix = 0 }
}

active [PUSHERS] proctype Pusher() MORTAL {
  byte me, mine, ticket, seen, number, from, to, prefix, covered, i;
  bool over, leads, crowd, error, fresh;
  do
  :: over -> break
  :: else ->
     {
       atomic {
         if
         :: last < INCARNATIONS && !poison -> last++; me = last; alive[me] = true
         :: else -> goto out
         fi;
#ifdef EIO
         fresh = true; told[_pid] = failed;
#endif
         mine = tail; state[mine] = me << 2 | CLAIMED; tail++
       };
#ifdef BREAK_TICKET_EARLY
       ticket = started + 1;
#endif
       atomic { assert(CODE(mine) == CLAIMED); state[mine] = me << 2 | READY };
#ifndef BREAK_TICKET_EARLY
       ticket = started + 1;
#endif
       if
       :: crowd = true
       :: crowd = false
       fi;
       do
       :: true ->
          if
          :: done >= ticket -> break
          :: else
          fi;
          if
          :: poison -> goto failure
          :: else
          fi;
          seen = leader;
          if
          :: VACANT(seen) ->
             atomic {
               if
               :: leader == seen -> leader = me; leads = true
               :: else
               fi
             }
          :: else
          fi;
          seen = 0;
          if
          :: leads || !crowd ->
             if
             :: done < ticket || poison -> flush(mine)
             :: else
             fi;
             atomic {
               if
               :: leads && leader == me -> leader = 0
               :: else
               fi;
               leads = false
             };
             if
             :: error -> goto failure
             :: else
             fi
          :: !leads && crowd ->
             if /* a slice that finds nothing new is no step */
             :: done >= ticket || leader == 0 || poison
#ifndef BREAK_NO_SUCCESSOR
             :: leader != 0 && !alive[leader]
#endif
#if !defined(BREAK_NO_PATIENCE) && !defined(BREAK_NO_SUCCESSOR)
             :: leader != 0 && alive[leader] ->
                flush(mine);
                if
                :: error -> goto failure
                :: else -> goto success
                fi
#endif
             fi
          fi
       od;
       if
       :: poison -> goto failure
       :: else
       fi;
success:
       assert(disk & BIT(mine));
       goto failure;
halt:
endstop:
       false;
failure:
       alive[me] = false;
out:   over = true
     } unless { KILLED };
     if
     :: over -> break
     :: else ->
        atomic { BURIED; ticket = 0; seen = 0; number = 0; from = 0; to = 0; prefix = 0;
          covered = 0; i = 0; mine = 0; leads = false; crowd = false; error = false; fresh = false;
          if
          :: stopped == me -> stopped = 0
          :: else
          fi
        };
        atomic { alive[me] = false; me = 0 }
     fi
  od;
  GONE
}

#define ALL_GONE ((gone & 6) == 6)
#ifdef STOPS
#define NOBODY_COMES (stopped != 0 || ALL_GONE)
#else
#define NOBODY_COMES ALL_GONE
#endif

#ifndef ALONE /* pushers among themselves */
active proctype Consumer() MORTAL {
  byte me, at, number, from, to, prefix, covered, i;
  bool error, fresh;
  do
  :: consumed -> break
  :: else ->
     {
       at = head;
#ifdef EIO
       atomic { fresh = true; told[_pid] = failed };
#endif
       do
       :: watermark < at -> assert(false) /* what was handed out stays below it */
       :: at < watermark ->
          atomic {
            assert(SETTLED(at) && (disk & BIT(at)));
            at++; head = at
          }
       :: at == watermark && at < tail ->
          if
          :: watermark != at || poison
          :: atomic { CODE(at) == CLAIMED && !alive[BY(at)] -> state[at] = BY(at) << 2 | GAP }
#ifndef BREAK_NO_CONSUMER
          :: SETTLED(at) && !poison && ORPHAN(at) -> flush(at)
#endif
          fi;
          if
          :: poison && at >= watermark -> break
          :: else
          fi
       :: at == tail && NOBODY_COMES && at == tail -> break
       od;
       goto halted;
halt: false;
halted:
       consumed = true
     } unless { KILLED };
     if
     :: consumed -> break
     :: else ->
        atomic { BURIED; at = 0; number = 0; from = 0; to = 0; prefix = 0; covered = 0; i = 0;
          error = false; fresh = false }
     fi
  od;
  GONE
}
#endif
