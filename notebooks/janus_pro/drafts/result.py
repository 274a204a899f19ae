from notebooks.janus_pro import convert, drawing
from notebooks.janus_pro.pictures import held_out, held_out_wishes
from notebooks.janus_pro.pipeline import Janus
import sys
g=float(sys.argv[1]) if len(sys.argv)>1 else 5.0
j=Janus(convert.prepare("tiny","FP16"))
asks=[held_out(k,3)[2] for k in ("colour","count","place","relation")]
wishes=[held_out_wishes(k,3)[1][1] for k in ("place","count","several","relation")]
rows=[(f"{q.text}\n{j.understand(p,q.text)}",p) for p,q in asks]
rows+=[(w.text,j.draw(w.text,seed=1,guidance=g)[0]) for w in wishes]
f=drawing.pictures_with_words(rows); f.savefig("/tmp/result9.png",dpi=80,facecolor="white")
print(*[r[0] for r in rows],sep="\n")
